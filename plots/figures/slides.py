"""Draws the pictures of the pages as PNG files for slides, 1920 pixels wide, on white.

Usage: python3 -m plots.figures.slides DOCS/pictures DIRECTORY
"""

import shutil
import sys
from base64 import b64encode
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH = 1920


def main() -> int:
    pictures, directory = map(Path, sys.argv[1:])
    directory.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"),
                                             args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 100}, reduced_motion="reduce")
        for path in sorted(pictures.glob("*.svg")):
            if path.stem.endswith("_dark"):
                continue
            page.set_content(f'<body style="margin:0"><img src="data:image/svg+xml;base64,'
                             f'{b64encode(path.read_bytes()).decode()}" style="width:{WIDTH}px;display:block">')
            page.screenshot(path=directory / f"{path.stem.removesuffix('_light')}.png",
                            full_page=True)
        browser.close()
    print(f"slides: {len(list(directory.glob('*.png')))} pictures in {directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

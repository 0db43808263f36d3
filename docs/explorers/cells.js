/* What the explorers of cells share: a cell is chosen by the pointer or by the arrow keys. */
'use strict';

/** Calls choose(index) when the pointer is over or presses an element with a data-index. */
function onPointer(svg, choose) {
  for (const name of ['pointerover', 'pointerdown']) {
    svg.addEventListener(name, (event) => {
      const { index } = event.target.dataset;
      if (index !== undefined) choose(Number(index));
    });
  }
}

const KEYS = {
  ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
  Home: [-Infinity, 0], End: [Infinity, 0], PageUp: [0, -Infinity], PageDown: [0, Infinity],
};

/** Calls move(columns, rows) for the arrow keys. */
function onArrows(svg, move) {
  svg.addEventListener('keydown', (event) => {
    if (!(event.key in KEYS) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    move(...KEYS[event.key]);
  });
}

/** The width that a drawing may have; 0 before the page has its layout. */
function roomFor(svg) {
  return svg.parentElement.clientWidth;
}

// What scrolls can be reached with the Tab key, so that the arrow keys scroll it.
const makeReachable = () => document.querySelectorAll("article pre, article div.math, .table-wrapper").forEach(box => {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
});
addEventListener("load", () => window.MathJax?.Hub ? MathJax.Hub.Queue(makeReachable) : makeReachable());
addEventListener("resize", makeReachable);

// The tree shows the page that is open.
const tree = document.querySelector(".sidebar-scroll"), current = tree.querySelector(".current-page > a");
if (current) tree.scrollBy({ top: current.getBoundingClientRect().top - innerHeight / 2, behavior: "instant" });

// A frame with an explorer says how high it is.
addEventListener("message", ({ data, source }) => {
  for (const frame of document.querySelectorAll("iframe"))
    if (frame.contentWindow === source) frame.style.height = `${data.height + 2}px`;
});

// A browser does not let a page read others from file://. Elsewhere a result of the search has an excerpt.
DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = location.protocol !== "file:";

// Of results that are equal otherwise, the first has most words of the query in its title.
document.addEventListener("DOMContentLoaded", () => {
  if (!window.Scorer) return; // of the page of the search
  Scorer.score = ([, title, , , score]) => score + document.querySelector("input[name=q]").value.toLowerCase()
    .split(/\s+/).filter(word => word && title.toLowerCase().includes(word)).length;
});

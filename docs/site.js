// What scrolls can be reached with the Tab key, so that the arrow keys scroll it.
const makeReachable = () => document.querySelectorAll("article pre, .table-wrapper").forEach(box => {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
});
addEventListener("load", makeReachable);
addEventListener("resize", makeReachable);

// What scrolls can be reached with the Tab key, so that the arrow keys scroll it.
const makeReachable = () => document.querySelectorAll("article pre, .table-wrapper").forEach(box => {
  if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
});
addEventListener("load", makeReachable);
addEventListener("resize", makeReachable);

// The tree shows the page that is open.
const tree = document.querySelector(".sidebar-scroll"), current = tree.querySelector(".current-page > a");
if (current) tree.scrollBy({ top: current.getBoundingClientRect().top - innerHeight / 2, behavior: "instant" });

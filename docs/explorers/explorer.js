/* What all explorers share: the header, SVG elements, selects, the address, and drawing to a width. */
'use strict';

/** Links to the site and to the other explorers. */
function addHeader() {
  const header = document.createElement('header');
  header.innerHTML = '<a href="../index.html">Attention, step by step</a><nav aria-label="Explorers"></nav>';
  for (const name of ['Fragments', 'Banks', 'Timeline', 'Shares']) {
    const link = document.createElement('a');
    link.href = `${name.toLowerCase()}.html`;
    link.textContent = name;
    if (window.location.pathname.endsWith(link.getAttribute('href'))) link.setAttribute('aria-current', 'page');
    header.lastChild.append(link);
  }
  document.body.prepend(header);
}

/** The switch of the site between light and dark writes the choice here. */
function followTheme() {
  document.documentElement.dataset.theme = window.localStorage.getItem('theme') ?? 'auto';
}

addHeader();
followTheme();
window.addEventListener('storage', followTheme);

function byId(id) {
  return document.getElementById(id);
}

/** Adds an SVG element to `parent`. */
function addSvg(parent, tag, attributes, text) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function addRect(parent, box, attributes) {
  const { x, y, width, height } = box;
  return addSvg(parent, 'rect', { x, y, width, height, ...attributes });
}

/** Lines of text in the middle of a box. */
function addLabel(parent, box, lines, className = '') {
  const height = 12;
  lines.forEach((line, i) => addSvg(parent, 'text', {
    x: box.x + box.width / 2,
    y: box.y + box.height / 2 + (i - (lines.length - 1) / 2) * height,
    class: className,
  }, line));
}

/**
 * Empties an SVG, sets its size and adds layers. Marks are drawn between the cells and the text, so
 * that they hide neither.
 */
function startDrawing(svg, width, height) {
  svg.replaceChildren();
  svg.setAttribute('width', width);
  svg.setAttribute('height', height);
  const [cells, marks, labels] = [0, 1, 2].map(() => addSvg(svg, 'g', {}));
  return { cells, marks, labels };
}

/** Fills a select with [value, label] pairs, and keeps its value if that is one of them. */
function fillSelect(select, choices, wanted = select.value) {
  select.replaceChildren(...choices.map(([value, label]) => new Option(label, value)));
  select.value = choices.some(([value]) => value === wanted) ? wanted : choices[0][0];
}

/** The values of the controls are in the address, so that a page can link to them:
 * banks.html#03,64,q_ldmatrix,own or banks.html?03,64. */
function readAddress() {
  return decodeURIComponent((location.hash || location.search).slice(1)).split(',');
}

function writeAddress(values) {
  history.replaceState(null, '', `#${values.join(',')}`);
}

function clamp(value, most) {
  return Math.max(0, Math.min(most, value));
}

/** Calls draw() when the page gets its layout, and when its width changes. */
function onWidth(draw) {
  const main = document.querySelector('main');
  let width = 0;
  new ResizeObserver(() => {
    if (main.clientWidth === width) return;
    width = main.clientWidth;
    draw();
  }).observe(main);
}

// Another page has texts of its own around its frame.
if (window !== window.parent) {
  document.documentElement.classList.add('framed');
  new ResizeObserver(() => window.parent.postMessage({ height: document.body.offsetHeight }, '*')).observe(document.body);
}

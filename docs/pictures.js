/* A picture opens at its natural size, because on a phone the text in it is too small to read. */
'use strict';

document.addEventListener('DOMContentLoaded', () => {
  const dialog = document.createElement('dialog');
  dialog.className = 'enlarged';
  dialog.innerHTML = '<button type="button" autofocus>Close</button><div tabindex="0" role="group" aria-label="The picture can be scrolled"><img alt=""></div>';
  dialog.querySelector('button').addEventListener('click', () => dialog.close());
  dialog.addEventListener('click', ({ target }) => { if (target === dialog) dialog.close(); });
  document.body.append(dialog);
  // Sphinx links a picture of a given width to itself; other links have a target of their own.
  for (const picture of document.querySelectorAll('article img:not(a:not(.image-reference) img)')) {
    let link = picture.closest('a');
    if (!link) {
      link = document.createElement('a');
      link.href = picture.src;
      picture.replaceWith(link);
      link.append(picture);
    }
    link.className = `enlarge ${picture.className}`; // only-light or only-dark
    link.title = 'Enlarge';
    link.addEventListener('click', (event) => {
      event.preventDefault();
      const { src, alt } = picture;
      Object.assign(dialog.querySelector('img'), { src, alt });
      dialog.showModal();
    });
  }
});

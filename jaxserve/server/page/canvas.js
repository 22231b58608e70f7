// Canvases that keep their size in step with the page, and the page's colours for them.

// The page's colours of these names, as they are now.
export function colours(...names) {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const still = matchMedia("(prefers-reduced-motion: reduce)");

// Whether people have asked their system for less motion.
export function prefersStill() {
  return still.matches;
}

// Sets a canvas's pixels for its width on the page and a height in CSS pixels; its context.
export function fit(canvas, height) {
  const scale = window.devicePixelRatio || 1;
  const width = Math.max(50, Math.floor(canvas.parentElement.clientWidth));
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return { context, width, height };
}

// Calls a handler when the canvas's width, the colour scheme or the pixel size may have changed.
export function whenResized(canvas, handler) {
  new ResizeObserver(() => handler()).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => handler());
}

// Draws at most once a frame.
export function atNextFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

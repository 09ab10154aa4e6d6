// Draws the timeline of a report: a canvas a row, all over the same stretch of time. The data stands in the page:
// seconds, colours by kind, and rows of spans [start, seconds, filled share, kind, text].
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const box = document.getElementById("timeline");
  const said = document.getElementById("said");
  const label = document.getElementById("range");
  const rows = [...box.querySelectorAll("canvas")].map((canvas, i) => ({ canvas, spans: data.rows[i] }));
  const START = 0, SECONDS = 1, FILL = 2, KIND = 3, TEXT = 4;
  const SHORTEST = data.seconds * 1e-5;
  let from = 0, to = data.seconds, grip = null, due = false;

  for (const swatch of document.querySelectorAll("[data-color]")) swatch.style.background = swatch.dataset.color;

  const inMs = seconds => `${(seconds * 1e3).toPrecision(4)} ms`;

  // The first span that ends after an instant: spans of a row do not overlap and come in order.
  const firstAfter = (spans, instant) => {
    let low = 0, high = spans.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (spans[middle][START] + spans[middle][SECONDS] <= instant) low = middle + 1; else high = middle;
    }
    return low;
  };

  const drawRow = ({ canvas, spans }) => {
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const scale = width / (to - from);
    for (let i = firstAfter(spans, from); i < spans.length && spans[i][START] < to; i++) {
      const span = spans[i];
      const left = Math.max((span[START] - from) * scale, 0);
      const right = Math.min((span[START] + span[SECONDS] - from) * scale, width);
      const tall = height * Math.min(Math.max(span[FILL], 0.15), 1);
      pen.fillStyle = data.kinds[span[KIND]][1];
      pen.fillRect(left, height - tall, Math.max(right - left, 0.5), tall);
      const text = data.texts[span[TEXT]];
      if (right - left > 24 && pen.measureText(text).width < right - left - 6) {
        pen.fillStyle = "#000";
        pen.fillText(text, left + 3, height / 2 + 1);
      }
    }
  };

  const draw = () => {
    due = false;
    rows.forEach(drawRow);
    label.textContent = `${inMs(from)} to ${inMs(to)}`;
  };
  const drawSoon = () => { if (!due) { due = true; requestAnimationFrame(draw); } };

  const show = (start, end) => {
    const length = Math.min(data.seconds, Math.max(SHORTEST, end - start));
    from = Math.min(data.seconds - length, Math.max(0, start));
    to = from + length;
    drawSoon();
  };

  const instantAt = event => {
    const place = rows[0].canvas.getBoundingClientRect();
    return from + (to - from) * Math.min(1, Math.max(0, (event.clientX - place.left) / place.width));
  };

  const tell = event => {
    const row = rows.find(one => one.canvas === event.target);
    const instant = instantAt(event);
    const span = row && row.spans[firstAfter(row.spans, instant)];
    said.hidden = !span || span[START] > instant;
    if (said.hidden) return;
    said.textContent = `${data.texts[span[TEXT]]} (${data.kinds[span[KIND]][0]}): ${inMs(span[SECONDS])} at ${inMs(span[START])}`;
    const frame = box.getBoundingClientRect();
    const left = Math.min(event.clientX - frame.left + 12, frame.width - said.offsetWidth);
    said.style.left = `${Math.max(0, left)}px`;
    said.style.top = `${event.clientY - frame.top + 16}px`;
  };

  box.addEventListener("wheel", event => {
    event.preventDefault();
    const factor = event.deltaY > 0 ? 1.25 : 0.8, centre = instantAt(event);
    show(centre - (centre - from) * factor, centre + (to - centre) * factor);
  }, { passive: false });
  box.addEventListener("pointerdown", event => { grip = instantAt(event); });
  window.addEventListener("pointerup", () => { grip = null; });
  box.addEventListener("pointermove", event => {
    if (grip === null) return tell(event);
    const moved = grip - instantAt(event);
    show(from + moved, to + moved);
  });
  box.addEventListener("pointerleave", () => { said.hidden = true; });
  box.addEventListener("dblclick", () => show(0, data.seconds));
  window.addEventListener("resize", drawSoon);
  draw();
})();

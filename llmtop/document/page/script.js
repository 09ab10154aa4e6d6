// Draws the timeline of a report: a canvas a row, all over the same stretch of time. The data stands in the page:
// the length in ns, kinds with their colours, texts, steps [start, length], and rows in columns. In a row `starts`
// are from piece to piece, `counts` and `fills` (percent) are empty where each piece is one event.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const box = document.getElementById("timeline");
  const said = document.getElementById("said");
  const label = document.getElementById("range");
  const unpacked = row => {
    let at = 0;
    return { ...row, starts: Float64Array.from(row.starts, more => at += more), lengths: Float64Array.from(row.lengths) };
  };
  const rows = [...box.querySelectorAll("canvas")].map((canvas, i) => ({ canvas, ...unpacked(data.rows[i]) }));
  const SHORTEST = Math.min(data.length, Math.max(1000, data.length * 1e-7));
  let from = 0, to = data.length, grip = null, due = false;

  for (const swatch of document.querySelectorAll("[data-color]")) swatch.style.background = swatch.dataset.color;

  const inMs = ns => `${(ns / 1e6).toPrecision(4)} ms`;

  // The first piece that ends after an instant: pieces of a row do not overlap and come in order.
  const firstAfter = (row, instant) => {
    let low = 0, high = row.starts.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.starts[middle] + row.lengths[middle] <= instant) low = middle + 1; else high = middle;
    }
    return low;
  };

  const fill = (row, i) => row.fills.length ? row.fills[i] / 100 : 1;

  const drawRow = row => {
    const { canvas, starts, lengths } = row;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const scale = width / (to - from);
    for (let i = firstAfter(row, from), piece = 0; i < starts.length && starts[i] < to; i++, piece++) {
      const left = Math.max((starts[i] - from) * scale, 0);
      const right = Math.min((starts[i] + lengths[i] - from) * scale, width);
      const tall = height * Math.min(Math.max(fill(row, i), 0.15), 1);
      pen.fillStyle = data.kinds[row.kinds[i]][1];
      pen.fillRect(left, height - tall, Math.max(right - left, 0.5), tall);
      if (right - left <= 24) continue;
      const text = data.texts[row.texts[i]];
      if (pen.measureText(text).width < right - left - 6) {
        pen.fillStyle = "#000";
        pen.fillText(text, left + 3, height / 2 + 1);
      }
      pen.fillStyle = "#0005";  // neighbours of one colour are told apart
      pen.fillRect(right - 0.5, 0, 0.5, height);
    }
  };

  const draw = () => {
    due = false;
    rows.forEach(drawRow);
    label.textContent = `${inMs(from)} to ${inMs(to)}`;
  };
  const drawSoon = () => { if (!due) { due = true; requestAnimationFrame(draw); } };

  const show = (start, end) => {
    const length = Math.min(data.length, Math.max(SHORTEST, end - start));
    from = Math.min(data.length - length, Math.max(0, start));
    to = from + length;
    drawSoon();
  };

  const instantAt = event => {
    const place = rows[0].canvas.getBoundingClientRect();
    return from + (to - from) * Math.min(1, Math.max(0, (event.clientX - place.left) / place.width));
  };

  const told = (row, i) => {
    const text = data.texts[row.texts[i]], kind = data.kinds[row.kinds[i]][0];
    const when = `${inMs(row.lengths[i])} at ${inMs(row.starts[i])}`;
    const many = row.counts.length ? row.counts[i] : 1;
    if (many === 1) return `${text} (${kind}): ${when}`;
    return `${many} pieces, ${Math.round(100 * fill(row, i))}% of this time, mostly ${text} (${kind}): ${when}`;
  };

  const tell = event => {
    const row = rows.find(one => one.canvas === event.target);
    const instant = instantAt(event);
    const i = row ? firstAfter(row, instant) : 0;
    said.hidden = !row || i >= row.starts.length || row.starts[i] > instant;
    if (said.hidden) return;
    said.textContent = told(row, i);
    const frame = box.getBoundingClientRect();
    const left = Math.min(event.clientX - frame.left + 12, frame.width - said.offsetWidth);
    said.style.left = `${Math.max(0, left)}px`;
    said.style.top = `${event.clientY - frame.top + 16}px`;
  };

  // The step that begins after, or before, the middle of what is seen.
  const go = forward => {
    const middle = (from + to) / 2, all = to - from >= data.length;
    const later = data.steps.findIndex(([start]) => start > middle);
    const next = later < 0 ? data.steps.length : later;
    const at = all ? (forward ? 0 : data.steps.length - 1) : forward ? next : next - 2;
    const [start, length] = data.steps[Math.min(data.steps.length - 1, Math.max(0, at))];
    show(start, start + length);
  };
  for (const [id, forward] of [["before", false], ["after", true]]) {
    const button = document.getElementById(id);
    button.hidden = data.steps.length < 2;
    button.addEventListener("click", () => go(forward));
  }
  const usual = document.getElementById("usual");
  usual.hidden = !data.usual || data.steps.length < 2;
  usual.addEventListener("click", () => show(data.usual[0], data.usual[0] + data.usual[1]));
  document.getElementById("all").addEventListener("click", () => show(0, data.length));

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
  box.addEventListener("dblclick", () => show(0, data.length));
  window.addEventListener("resize", drawSoon);
  draw();
})();

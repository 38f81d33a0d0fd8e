// Charts over the embedded data. No text of the data is ever parsed as HTML: everything goes through textContent.
"use strict";

const page = JSON.parse(document.getElementById("data").textContent);

const charts = (() => {
  const drawn = [];
  const hidden = new Set([...document.querySelectorAll(".key[aria-pressed='false']")].map((key) => Number(key.dataset.series)));
  let option = 0;
  const dashes = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2], [], [7, 3], [2, 3]];
  const sync = uPlot.sync("steps");

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const color = (index) => css(index < 0 ? "--ink" : `--c${index % 8}`);

  const paint = (line) => line.colour < 0 ? css("--faint") : color(line.colour);

  function format(value, percent) {
    if (value === null || value === undefined) return "–";
    const number = percent ? value * 100 : value;
    const size = Math.abs(number);
    const digits = percent ? 1 : size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
    const text = size !== 0 && size < 0.001 ? number.toExponential(1) : number.toFixed(digits);
    return text.replace("-", "−") + (percent ? " %" : "");
  }

  function axis(chart, vertical) {
    return {
      stroke: () => css("--faint"),
      font: "12px system-ui, sans-serif",
      grid: { stroke: () => css("--hair"), width: 1, show: vertical },
      ticks: { show: !vertical, stroke: () => css("--rule"), size: 4 },
      border: { show: !vertical, stroke: () => css("--rule"), width: 1 },
      size: vertical ? 46 : 26,
      gap: 4,
      space: vertical ? 34 : 60,
      values: (_, ticks) => ticks.map((tick) => tick === null ? "" : vertical
        ? (chart.bars ? `${tick} %` : label(tick, chart.percent, ticks)) : String(+tick.toFixed(3)).replace("-", "−")),
    };
  }

  function label(tick, percent, ticks) {
    const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) * (percent ? 100 : 1) : 1;
    const digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
    return ((percent ? tick * 100 : tick).toFixed(digits) + (percent ? " %" : "")).replace("-", "−");
  }

  // The smallest range that holds the curves and, where the chart has bounds, lies within a little of them.
  function range(chart) {
    return (_, low, high) => {
      if (chart.low !== null && chart.high !== null && !chart.bars) {
        const reach = chart.high - chart.low;
        return [chart.low - reach * 0.02, chart.high + reach * 0.02];
      }
      const top = chart.high !== null ? chart.high : high, bottom = chart.low !== null ? chart.low : low;
      if (bottom === null || top === null) return [0, 1];
      const pad = (top - bottom || Math.abs(top) || 1) * 0.08;
      return [chart.low !== null ? chart.low : bottom - pad, top + pad];
    };
  }

  function span(chart) {
    const half = chart.bars ? (chart.x[1] - chart.x[0]) / 2 : 1;
    const whole = [chart.x[0] - half, chart.x[chart.x.length - 1] + half];
    return chart.bars || chart.x.length === 1 ? { range: whole } : {};
  }

  function series(chart) {
    const data = [chart.x], list = [{}];
    chart.lines.forEach((line, index) => {
      if (chart.bars) {
        data.push(line.values);
        list.push({ line, show: index === option, fill: () => paint(line), stroke: () => paint(line), width: 0,
          points: { show: false }, paths: uPlot.paths.bars({ size: [0.86, 40] }) });
        return;
      }
      if (line.thin) {
        data.push(line.thin);
        list.push({ line, ghost: true, show: !hidden.has(line.colour), stroke: () => color(line.colour), alpha: 0.28, width: 1, points: { show: false } });
      }
      const many = line.values.length > 1;
      data.push(line.values);
      list.push({ line, ghost: line.faint, show: !hidden.has(line.colour), stroke: () => color(line.colour), width: line.faint ? 1 : 2, alpha: line.faint ? 0.4 : 1,
        dash: line.faint || line.colour < 0 ? [] : dashes[line.colour % 8], points: { show: !many || undefined, size: 5 } });
    });
    return { data, list };
  }

  const short = (name) => name.length > 18 ? `${name.slice(0, 17)}…` : name;
  const ruler = document.createElement("canvas").getContext("2d");
  function width(text) {
    ruler.font = "600 12px system-ui, sans-serif";
    return Math.ceil(ruler.measureText(text).width);
  }

  // Names at the ends of the curves, pushed apart where they would overlap.
  function names(chart, room) {
    return (plot) => {
      if (!room) return;
      const marks = [];
      plot.series.forEach((one, index) => {
        if (!one.line || one.ghost || !one.show) return;
        const values = plot.data[index];
        let last = values.length - 1;
        while (last >= 0 && values[last] === null) last -= 1;
        if (last >= 0) marks.push({ y: plot.valToPos(values[last], "y", true), line: one.line });
      });
      marks.sort((a, b) => a.y - b.y);
      const gap = 15 * devicePixelRatio;
      for (let k = 1; k < marks.length; k += 1) marks[k].y = Math.max(marks[k].y, marks[k - 1].y + gap);
      const over = marks.length ? marks[marks.length - 1].y - (plot.bbox.top + plot.bbox.height) : 0;
      if (over > 0) marks.forEach((mark, k) => { mark.y = Math.max(mark.y - over, plot.bbox.top + k * gap); });
      const brush = plot.ctx;
      brush.save();
      brush.font = `600 ${12 * devicePixelRatio}px system-ui, sans-serif`;
      brush.textBaseline = "middle";
      brush.textAlign = "left";
      for (const mark of marks) {
        brush.fillStyle = color(mark.line.colour);
        brush.fillText(short(mark.line.name), plot.bbox.left + plot.bbox.width + 8 * devicePixelRatio, mark.y);
      }
      brush.restore();
    };
  }

  function read(figure, chart, plot, index) {
    const out = figure.querySelector(".readout");
    out.replaceChildren();
    const at = index ?? chart.x.length - 1;
    const add = (text, value) => {
      const bold = document.createElement("b"), pair = document.createElement("span");
      bold.textContent = value;
      pair.append(`${text} `, bold);
      out.append(pair, " ");
    };
    if (chart.bars) {
      if (index === null || index === undefined) return;
      add(`${chart.x_label} near`, format(chart.x[at]));
      add("rollouts", `${(plot.data[option + 1][at] ?? 0).toFixed(1)} %`);
      return;
    }
    add(chart.x_label, String(chart.x[at]));
    plot.series.forEach((one, k) => {
      if (one.line && !one.ghost && one.show) add(one.line.name, format(plot.data[k][at], chart.percent));
    });
  }

  function draw(figure) {
    const chart = page.charts[figure.dataset.chart];
    const place = figure.querySelector(".plot");
    if (!chart || !chart.x.length) return;
    const { data, list } = series(chart);
    const named = chart.lines.filter((line) => !line.faint);
    // Beyond a dozen curves names at their ends would not find room; the legend and the readout name them.
    const wide = place.clientWidth > 520 && named.length > 1 && named.length <= 12 && !chart.bars;
    const room = wide ? 14 + Math.max(...named.map((line) => width(short(line.name)))) : 0;
    const plot = new uPlot({
      width: place.clientWidth, height: place.clientHeight, padding: [8, room || 10, 0, 0], legend: { show: false },
      cursor: { y: false, drag: { x: !chart.bars, y: false }, points: { size: 7 }, ...(chart.bars ? {} : { sync: { key: sync.key } }) },
      scales: { x: { time: false, ...span(chart) }, y: { range: range(chart) } },
      axes: [axis(chart, false), axis(chart, true)], series: list,
      hooks: { draw: [names(chart, room)], setCursor: [(self) => read(figure, chart, self, self.cursor.idx)] },
    }, data, place);
    read(figure, chart, plot, null);
    drawn.push({ figure, chart, plot, place });
    place.addEventListener("keydown", (event) => step(event, plot, chart));
    new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: place.clientHeight })).observe(place);
  }

  function step(event, plot, chart) {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const at = Math.min(chart.x.length - 1, Math.max(0, (plot.cursor.idx ?? (move > 0 ? -1 : chart.x.length)) + move));
    plot.setCursor({ left: plot.valToPos(chart.x[at], "x"), top: 10 });
  }

  function show() {
    for (const { plot, chart, figure } of drawn) {
      plot.batch(() => plot.series.forEach((one, k) => {
        if (!one.line) return;
        const visible = chart.bars ? chart.lines.indexOf(one.line) === option : !hidden.has(one.line.colour);
        if (one.show !== visible) plot.setSeries(k, { show: visible });
      }));
      read(figure, chart, plot, null);
    }
  }

  for (const button of document.querySelectorAll(".key[data-series]")) {
    button.addEventListener("click", () => {
      const index = Number(button.dataset.series);
      if (hidden.has(index)) hidden.delete(index); else hidden.add(index);
      button.setAttribute("aria-pressed", String(!hidden.has(index)));
      show();
    });
  }
  const choices = document.querySelectorAll("[data-option]");
  for (const button of choices) {
    button.addEventListener("click", () => {
      option = Number(button.dataset.option);
      for (const other of choices) other.setAttribute("aria-pressed", String(other === button));
      show();
    });
  }
  document.querySelectorAll("[data-chart]").forEach(draw);
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", () => drawn.forEach(({ plot }) => plot.redraw(false)));
  }
  return { drawn };
})();

// Charts of datasets: each <div data-chart="KIND" data-src="URL"> draws the columns that URL answers, or that
// the page holds where the URL is "#id"; with data-task="N" those of the task N alone.
"use strict";
(() => {
  const COLOURS = 8;
  const REFRESH_MS = 10000;
  const drawn = new Map();  // element -> uPlot

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colour = (index) => css(`--s${(index % COLOURS) + 1}`);
  const faded = (index, percent) => `color-mix(in srgb, ${colour(index)} ${percent}%, transparent)`;

  // --- numbers with units --------------------------------------------------------------------

  const digits = (v) => Math.abs(v) >= 99.95 ? v.toFixed(0) : Math.abs(v) >= 9.995 ? v.toFixed(1) : v.toFixed(2);
  const short = (v) => String(Number(v.toPrecision(3)));
  const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
  const latency = (s, write = digits) => {
    if (s == null) return "–";
    const [unit, name] = TIMES.find(([u]) => Math.abs(s) >= u * 0.9999) ?? TIMES[3];
    return s === 0 ? "0" : `${write(s / unit)} ${name}`;
  };
  const elapsed = (s) => s == null ? "–" : s >= 3600 ? `${short(s / 3600)} h` : s >= 60 ? `${short(s / 60)} min` : `${short(s)} s`;
  const times = (v) => v == null ? "–" : `${digits(v)} ×`;
  const plain = (v) => v == null ? "–" : short(v);
  // Times of day as finely as the span of the axis needs.
  const clockOf = (xs) => {
    const span = Math.max(...xs) - Math.min(...xs);
    const [from, to] = span > 86400 * 3 ? [5, 10] : span > 3600 ? [5, 16] : [11, 19];
    return (s) => s == null ? "–" : new Date(s * 1000).toISOString().slice(from, to).replace("T", " ");
  };

  // --- from rows to series -------------------------------------------------------------------

  // Series of their own x each, on one sorted axis: null where a series has no point.
  function joined(series) {
    const xs = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
    const place = new Map(xs.map((x, i) => [x, i]));
    return [xs, ...series.map((one) => {
      const column = new Array(xs.length).fill(null);
      one.x.forEach((x, i) => { column[place.get(x)] = one.y[i]; });
      return column;
    })];
  }

  function grouped(columns, key, x, y, keep = () => true) {
    const groups = new Map();
    columns[key].forEach((name, i) => {
      if (columns[x][i] == null || columns[y][i] == null || !keep(i)) return;
      if (!groups.has(name)) groups.set(name, { name, x: [], y: [], ids: [] });
      const group = groups.get(name);
      group.x.push(columns[x][i]);
      group.y.push(columns[y][i]);
      group.ids.push(columns.id?.[i]);
    });
    return [...groups.values()].sort((a, b) => b.x.length - a.x.length);
  }

  const dots = (label, index, value, size = 5) => ({
    label, stroke: colour(index), value: (_, v) => value(v), paths: () => null,
    points: { show: true, size, width: 0, fill: faded(index, 62), stroke: "transparent" },
  });
  const steps = (label, index, value, width = 2) => ({
    label, stroke: colour(index), width, value: (_, v) => value(v), spanGaps: true,
    paths: uPlot.paths.stepped({ align: 1 }), points: { show: false },
  });

  // --- kinds of charts: a dataset to series, axes and data -------------------------------------

  const KINDS = {
    // Best so far: of one task its latency between the extremes of its repeats, of several speedups.
    best(data, element) {
      const c = data.columns;
      const x = element.dataset.x === "time" ? "at_s" : "trial";
      const end = x === "trial" ? data.notes.trials : data.notes.seconds;
      const names = new Map(JSON.parse(element.dataset.tasks ?? "[]"));  // heaviest first
      const xFormat = x === "trial" ? plain : elapsed;
      if (new Set(c.task).size === 1) {
        const line = (column) => ({ x: extended(c[x], end), y: held(c[column]) });
        return {
          data: joined([line("latency_s"), line("low_s"), line("high_s")]),
          series: [steps("median", 0, latency, 2.2), steps("fastest repeat", 7, latency, 0.8), steps("slowest repeat", 7, latency, 0.8)],
          bands: [{ series: [3, 2], fill: faded(0, 14) }], xFormat, yFormat: (v) => latency(v, short),
          yLabel: "latency", xLabel: x === "trial" ? "candidates" : "time",
        };
      }
      const groups = grouped(c, "task", x, "speedup").map((g) => ({ ...g, x: extended(g.x, end), y: held(g.y) }));
      const order = [...names.keys()];
      groups.sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name));
      return {
        data: joined(groups),
        series: groups.map((g, i) => steps(names.get(g.name) ?? `task ${g.name}`, i < COLOURS - 1 ? i : COLOURS - 1, times, i < COLOURS - 1 ? 2 : 0.9)),
        xFormat, yFormat: (v) => `${short(v)} ×`, yLabel: "speed over default", xLabel: x === "trial" ? "candidates" : "time",
        keys: [...groups.slice(0, COLOURS - 1).map((g) => names.get(g.name) ?? `task ${g.name}`),
          ...(groups.length >= COLOURS ? ["all others"] : [])],
      };
    },
    // A line a job.
    curves(data, element) {
      const x = element.dataset.x === "time" ? "at_s" : "trial";
      const y = data.notes.measure, value = y === "latency_s" ? latency : times;
      const order = JSON.parse(element.dataset.jobs);
      const groups = grouped(data.columns, "job", x, y).sort((a, b) => order.indexOf(a.name) - order.indexOf(b.name));
      return {
        data: joined(groups), series: groups.map((g) => steps(g.name, order.indexOf(g.name), value)),
        xFormat: x === "trial" ? plain : elapsed, yFormat: y === "latency_s" ? (v) => latency(v, short) : (v) => `${short(v)} ×`,
        yLabel: y === "latency_s" ? "latency" : "speed over the defaults", xLabel: x === "trial" ? "candidates" : "time",
      };
    },
    points(data, element) {
      const isOne = new Set(data.columns.task).size === 1;
      const y = isOne ? "latency_s" : "speedup";
      const order = data.columns.id.map((_, i) => i + 1);
      const groups = grouped({ ...data.columns, order }, element.dataset.by ?? "sketch", "order", y);
      return {
        data: joined(groups), ids: idsOf(groups),
        series: groups.map((g, i) => dots(g.name || "unknown", i, isOne ? latency : times)),
        xFormat: plain, yFormat: isOne ? (v) => latency(v, short) : (v) => `${short(v)} ×`, log: true,
        yLabel: isOne ? "latency" : "speed over default", xLabel: "candidates, in order",
      };
    },
    prediction(data) {
      const isOne = new Set(data.columns.task).size === 1;
      const y = isOne ? "latency_s" : "speedup";
      const groups = grouped(data.columns, "sketch", "predicted", y);
      return {
        data: joined(groups), ids: idsOf(groups),
        series: groups.map((g, i) => dots(g.name || "unknown", i, isOne ? latency : times)),
        xFormat: plain, yFormat: isOne ? (v) => latency(v, short) : (v) => `${short(v)} ×`, log: true,
        yLabel: isOne ? "measured latency" : "measured speed", xLabel: "predicted score (higher is faster)",
      };
    },
    drift(data) {
      const c = data.columns;
      return {
        data: joined([{ x: c.at_s, y: c.drift }]),
        series: [{ ...dots("reference loop", 0, times, 4), paths: uPlot.paths.linear(), width: 1, spanGaps: true }],
        xFormat: clockOf(c.at_s), yFormat: (v) => `${short(v)} ×`, yLabel: "time against the first", xLabel: "UTC",
      };
    },
    history(data, element) {
      const groups = grouped(data.columns, element.dataset.by ?? "sketch", "at_s", "latency_s");
      return {
        data: joined(groups), ids: idsOf(groups), series: groups.map((g, i) => dots(g.name || "unknown", i, latency)),
        xFormat: clockOf(data.columns.at_s), yFormat: (v) => latency(v, short), log: true, yLabel: "latency", xLabel: "UTC",
      };
    },
    slice(data, element) {
      const name = element.dataset.knob, values = data.columns[`knob_${name}`] ?? [];
      const isNumber = values.every((v) => v == null || typeof v === "number");
      const found = [...new Set(values.filter((v) => v != null))].sort(isNumber ? (a, b) => a - b : undefined);
      const place = new Map(found.map((v, i) => [v, i]));
      // Candidates of a value stand side by side, each always where it was: by its number.
      const at = values.map((v, i) => v == null ? null : place.get(v) + 0.6 * ((data.columns.id[i] * 0.618034) % 1 - 0.5));
      const groups = grouped({ ...data.columns, at }, "sketch", "at", "latency_s");
      return {
        data: joined(groups), ids: idsOf(groups), series: groups.map((g, i) => dots(g.name || "unknown", i, latency)),
        xFormat: (v) => String(found[Math.round(v)] ?? ""), xSplits: found.map((_, i) => i), xRange: [-0.6, found.length - 0.4],
        yFormat: (v) => latency(v, short), log: true, yLabel: "latency", xLabel: name,
      };
    },
    roofline(data) {
      const c = data.columns;
      const { flops_s: peak, bytes_s: dram, l1_bytes_s: l1 } = data.notes;
      const series = [{ name: "tuned", x: c.intensity, y: c.flops_s, ids: [] }];
      if (c.default_flops_s.some((v) => v != null)) series.push({ name: "default", x: c.intensity, y: c.default_flops_s, ids: [] });
      const ends = [Math.min(...c.intensity) / 2, Math.max(...c.intensity) * 2];
      for (const [name, bandwidth] of [["DRAM roof", dram], ["L1 roof", l1]]) {
        if (!peak || !bandwidth) continue;
        const xs = [ends[0], peak / bandwidth, ends[1]].sort((a, b) => a - b);
        series.push({ name, x: xs, y: xs.map((v) => Math.min(peak, v * bandwidth)), ids: [] });
      }
      const rate = (v) => v == null ? "–" : `${digits(v / 1e9)} GFLOP/s`;
      return {
        data: joined(series),
        series: series.map((one, i) => one.name.endsWith("roof")
          ? { label: one.name, stroke: css("--quiet"), width: 1.5, dash: one.name[0] === "L" ? [5, 4] : [], spanGaps: true, value: (_, v) => rate(v), points: { show: false } }
          : dots(one.name, i, rate, i ? 5 : 8)),
        xFormat: plain, yFormat: (v) => `${short(v / 1e9)} G`, log: true, xLog: true, yLabel: "FLOP/s", xLabel: "FLOP a byte",
      };
    },
  };

  const extended = (xs, end) => end > xs[xs.length - 1] ? [...xs, end] : xs;
  const held = (ys) => [...ys, ys[ys.length - 1]];
  const idsOf = (groups) => {
    const ids = new Map();
    groups.forEach((g, s) => g.x.forEach((x, i) => { ids.set(`${s}:${x}`, g.ids[i]); }));
    return (series, x) => ids.get(`${series}:${x}`);
  };

  // --- drawing -------------------------------------------------------------------------------

  const isDecade = (v) => Math.abs(Math.log10(v) - Math.round(Math.log10(v))) < 1e-6;

  // Logarithmic scales begin and end at the data, with a tick at 1, 2 and 5 where decades are few.
  const logRange = (_, low, high) => low > 0 && high > 0 ? [low / 1.2, high * 1.2] : [1, 10];
  function logSplits(_, axis, low, high) {
    const steps = high / low < 300 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let decade = Math.floor(Math.log10(low)); 10 ** decade <= high; decade++) {
      ticks.push(...steps.map((step) => step * 10 ** decade).filter((v) => v >= low && v <= high));
    }
    return ticks;
  }

  const scale = (isLog) => isLog ? { distr: 3, range: logRange } : { distr: 1 };

  function options(element, chart) {
    const axis = (format, label, size, isLog, space) => ({
      stroke: css("--quiet"), grid: { stroke: css("--line"), width: 1, filter: (_, splits) => isLog && splits.some(isDecade) ? splits.map((v) => isDecade(v) ? v : null) : splits }, ticks: { show: false }, size, space,
      ...(isLog ? { splits: logSplits, filter: (_, splits) => splits } : {}),
      font: "12px system-ui, sans-serif", label, labelFont: "12px system-ui, sans-serif", labelSize: 22,
      values: (_, ticks) => ticks.map((v) => v == null ? "" : format(v)),
    });
    const xAxis = axis(chart.xFormat, chart.xLabel, 34, chart.xLog, 84);
    if (chart.xSplits) xAxis.splits = () => chart.xSplits;
    const xScale = { time: false, ...scale(chart.xLog), ...(chart.xRange ? { range: chart.xRange } : {}) };
    return {
      width: Math.max(240, element.clientWidth), height: element.clientWidth < 480 ? 240 : 290,
      scales: { x: xScale, y: scale(chart.log) },
      axes: [xAxis, axis(chart.yFormat, chart.yLabel, 68, chart.log, 40)],
      series: [{ label: chart.xLabel, value: (_, v) => v == null ? "–" : chart.xFormat(v) }, ...chart.series],
      bands: chart.bands ?? [], legend: { show: !chart.keys && chart.series.length <= 12, markers: { width: 0, fill: (_, i) => chart.series[i - 1]?.stroke ?? "transparent" } },
      cursor: { points: { size: 8 }, focus: { prox: 24 }, drag: { x: true, y: false } },
      focus: { alpha: 0.35 },
    };
  }

  function keysOf(names) {
    const list = document.createElement("ul");
    list.className = "legend";
    names.forEach((name, i) => {
      const item = document.createElement("li"), key = document.createElement("span");
      key.className = `key c${i + 1}`;
      item.append(key, name);
      list.append(item);
    });
    return list;
  }

  function draw(element, data) {
    drawn.get(element)?.destroy();
    drawn.delete(element);
    const columns = Object.values(data.columns);
    const chart = columns.some((column) => column.length) ? KINDS[element.dataset.chart](data, element) : null;
    element.replaceChildren();
    if (!chart || !chart.data[0].length) {
      const empty = document.createElement("p");
      empty.className = "empty quiet";
      empty.textContent = "Nothing to draw yet.";
      element.append(empty);
      return;
    }
    const plot = new uPlot(options(element, chart), chart.data, element);
    drawn.set(element, plot);
    if (chart.keys) element.append(keysOf(chart.keys));
    if (!chart.ids || isHeld(element.dataset.src)) return;
    plot.over.addEventListener("click", () => {
      const index = plot.cursor.idx;
      if (index == null || plot.select.width > 0) return;
      const series = plot.series.findIndex((_, s) => s > 0 && plot.data[s][index] != null);
      const id = series > 0 ? chart.ids(series - 1, plot.data[0][index]) : null;
      if (id != null) location.assign(`/trials/${id}`);
    });
  }

  const datasets = new Map();  // URL -> promise: charts of the same data fetch it once
  const isHeld = (url) => url.startsWith("#");
  async function asked(url) {
    const answer = await fetch(url, { headers: { Accept: "application/json" } });
    if (!answer.ok) throw new Error(`${answer.status}`);
    return answer.json();
  }
  function fetched(url) {
    if (!datasets.has(url) && isHeld(url)) {
      datasets.set(url, Promise.resolve(JSON.parse(document.querySelector(url).textContent)));
    } else if (!datasets.has(url)) {
      datasets.set(url, asked(url));
    }
    return datasets.get(url);
  }

  function ofTask(data, task) {
    if (task == null) return data;
    const own = (column) => column.filter((_, i) => data.columns.task[i] === Number(task));
    const columns = Object.fromEntries(Object.entries(data.columns).map(([name, column]) => [name, own(column)]));
    return { ...data, columns };
  }

  async function show(element) {
    try {
      element.chartData = ofTask(await fetched(element.dataset.src), element.dataset.task);
      draw(element, element.chartData);
    } catch (error) {
      element.textContent = `The data did not come (${error.message}).`;
    }
  }

  const all = (root = document) => root.querySelectorAll("[data-chart]");
  const isFolded = (element) => element.closest("details:not([open])") !== null;  // and has no width
  const showAll = (root) => all(root).forEach((element) => { if (!element.chartData && !isFolded(element)) show(element); });
  const redraw = () => all().forEach((element) => { if (element.chartData) draw(element, element.chartData); });

  // Live: what came since is added to what is known, once for charts of the same data.
  async function refreshed(url, known) {
    const last = known.columns.id?.at(-1), step = known.notes.step ?? 0;
    const join = url.includes("?") ? "&" : "?";
    const data = await asked(last == null ? url : `${url}${join}after=${last}&step=${step}`);
    if (!data.notes.after || data.notes.after !== last) return data;
    for (const [name, column] of Object.entries(data.columns)) known.columns[name].push(...column);
    return { ...known, notes: { ...known.notes, ...data.notes } };
  }

  document.addEventListener("live:slow", () => {
    for (const [url, known] of [...datasets].filter(([one]) => !isHeld(one))) {
      datasets.set(url, known.then((data) => refreshed(url, data), () => asked(url)));
    }
    all().forEach((element) => { if (!isFolded(element)) show(element); });
  }, true);
  let resized = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(resized);
    resized = setTimeout(redraw, 150);
  });
  document.addEventListener("themechange", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  document.addEventListener("htmx:afterSwap", (event) => showAll(event.target));
  document.addEventListener("toggle", (event) => { if (event.target.open) showAll(event.target); }, true);
  document.addEventListener("DOMContentLoaded", () => showAll(document));

  document.addEventListener("change", (event) => {  // another knob
    const id = event.target.dataset.knobOf;
    if (!id) return;
    const element = document.getElementById(id);
    element.dataset.knob = event.target.value;
    if (element.chartData) draw(element, element.chartData);
  });

  document.addEventListener("click", (event) => {  // over candidates, or over time
    const button = event.target.closest("button[data-x]");
    if (!button) return;
    const element = document.getElementById(button.getAttribute("aria-controls"));
    element.dataset.x = button.dataset.x;
    button.parentElement.querySelectorAll("button").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
    if (element.chartData) draw(element, element.chartData);
  });
})();

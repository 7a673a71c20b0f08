"use strict";
/* The page of a circuits study: curves, pairs, numbers, head maps and heads, joined by the chosen head. */
(() => {
  const { data, el, svg, byId, known, fixed, signed, span, digitsFor, ticks, ranked, plot, key, stroke, headMap, cellSize, folds, headTable, select, ramp, follow, foot, showTip, resized, watch } = headlab;
  const { models, tasks, methods } = data;
  const level = data.level, percent = level, MOST = 4;
  const colour = name => `var(--c${models.findIndex(model => model.name === name) % 10})`;
  const swatch = name => headlab.swatch(colour(name));
  const lineOf = (model, task) => data.lines.find(line => line.model === model && line.task === task && line.method === now.method);
  const orders = new Map();
  const ranksOf = line => {
    if (!line?.map) return null;
    if (!orders.has(line)) orders.set(line, ranked(line.map.score));
    return orders.get(line);
  };
  const crossing = (line, key = level) => line?.curve?.crossings?.[key] || null;

  const first = data.pairs[0] || [null, null], family = data.pairs.filter(pair => pair[0] === first[0]).flat();
  const twins = new Set(data.pairs.map(pair => pair[2]).filter(Boolean));
  // What was declared: a dense model and each that is compared with it, sparse ones first.
  const declared = [1, 2].flatMap(side => data.pairs.map(pair => [pair[0], pair[side]])).filter(([dense, other], i, all) => other && all.findIndex(one => one[0] === dense && one[1] === other) === i);
  const now = {
    method: methods[0], axis: "number", dense: first[0], sparse: first[1], model: models[0].name, map: "score",
    shown: new Set([...new Set([...family, ...models.map(model => model.name)])].slice(0, Math.max(MOST, new Set(family).size))),
  };
  const pairUp = () => now.dense && now.sparse && now.dense !== now.sparse;
  const multiplier = (task, dense = now.dense, sparse = now.sparse) => data.multipliers.find(row => row.task === task && row.method === now.method && row.dense === dense && row.sparse === sparse);
  const called = name => name + (twins.has(name) && !name.includes("twin") ? ", twin" : "");
  const inSample = method => (data.in_sample || []).includes(method);

  // 1. Curves.
  const panels = byId("curve-panels");
  let plots = [];
  const matches = (model, other) => {
    const names = [other.name, other.hub_id, other.hub_id?.split("/").pop()].filter(Boolean).map(name => name.toLowerCase());
    return [model.name, model.hub_id].some(name => name && names.includes(name.toLowerCase()));
  };

  function drawControls() {
    byId("curve-controls").replaceChildren(...[
      methods.length > 1 && select("heads ranked by", methods.map(name => [name, inSample(name) ? `${name}, in-sample` : name]), now.method, value => { now.method = value; drawAll(); }),
      select("across", [["number", "number of heads"], ["log", "number of heads, logarithmic"], ["share", "share of heads"]], now.axis, value => { now.axis = value; drawCurves(); }),
    ].filter(Boolean));
  }

  function drawLegend() {
    const one = data.lines.find(line => line.curve)?.curve;
    const chips = models.map(({ name }) => el("button", { type: "button", class: "chip", "aria-pressed": String(now.shown.has(name)), title: "show or hide", click: () => {
      if (!now.shown.delete(name)) now.shown.add(name);
      drawLegend();
      drawCurves();
    } }, swatch(name), called(name)));
    byId("curve-legend").replaceChildren(
      el("div", { class: "models", role: "group", "aria-label": "models shown" }, chips),
      ...(now.shown.size < models.length ? [el("span", { class: "soft" }, `${now.shown.size} of ${models.length} models shown; click a name to add it`)] : []),
      key([svg("rect", { class: "band", x: 0, y: 0, width: 26, height: 12, style: { "--c": "var(--grey)" } }), stroke("var(--grey)")], "kept heads, 95 % interval"),
      ...(one?.random ? [key([stroke("var(--grey)", "random")], "random orders")] : []),
      ...(one?.matched ? [key([stroke("var(--grey)", "matched")], "random, as many of each layer")] : []),
      key([stroke("var(--grey)", "threshold")], `${percent} %`),
      ...(data.published.length ? [key([svg("circle", { class: "published", cx: 6, cy: 6, r: 4 }), svg("path", { class: "published", d: "M20 1l5 5-5 5-5-5z" })], "published")] : []));
  }

  function range(lines) {
    // Shared by all panels. Every curve has room; a band that is wider, of few prompts, is cut off.
    const curves = lines.flatMap(({ curve }) => [...curve.explained, ...(curve.random?.mean || []), ...(curve.matched?.mean || [])]).filter(known);
    const bands = lines.flatMap(({ curve }) => [...curve.low, ...curve.high]).filter(known);
    const low = Math.min(0, ...curves), high = Math.max(1, ...curves), room = .5 * (high - low);
    const min = Math.max(low - room, Math.min(low, ...bands)) - .03, max = Math.min(high + room, Math.max(high + .05, ...bands)) + .04;
    return { min, max, cut: bands.some(value => value < min || value > max) };
  }

  function drawCurves() {
    const shown = models.filter(model => now.shown.has(model.name));
    const lines = tasks.flatMap(task => shown.map(model => lineOf(model.name, task.name))).filter(line => line?.curve);
    const y = range(lines);
    const room = panels.clientWidth, most = Math.max(1, Math.floor((room + 28) / 330));
    const wanted = tasks.length === 4 ? 2 : Math.min(3, tasks.length), columns = Math.max(1, Math.min(most, wanted));
    panels.style.gridTemplateColumns = `repeat(${columns}, minmax(0, ${columns === 1 ? "46rem" : "1fr"}))`;
    const width = Math.min(columns === 1 ? 736 : Infinity, (room - 28.8 * (columns - 1)) / columns);
    plots = [];
    panels.replaceChildren(...tasks.map(task => panel(task, shown, y, Math.max(280, Math.floor(width)))));
    drawMarks(headlab.picked);
    const samples = [...new Set(lines.map(line => `n = ${line.n} prompts, ${line.sample}`))];
    const counts = [...new Set(lines.map(line => line.curve.random?.orders).filter(known))];
    byId("curve-caption").textContent = [
      samples.length > 0 && samples.length < 4 && `${samples.join("; ")}.`,
      "Band: 95 % bootstrap over prompts.",
      counts.length > 0 && `Grey: ${counts.join(" or ")} random order${counts.join() === "1" ? "" : "s"}, mean and 95 % of the orders.`,
      y.cut && "Bands that are wider leave the picture.",
    ].filter(Boolean).join(" ");
  }

  function panel(task, shown, y, width) {
    const found = shown.map(model => ({ model, line: lineOf(model.name, task.name) }));
    const drawn = found.filter(({ line }) => line?.curve).map(({ line }) => line);
    const notes = found.filter(({ line }) => !line?.curve).map(({ model, line }) => el("p", { class: "note soft" }, line?.finding || `${model.name}: not measured.`));
    const head = [el("h3", {}, task.name), el("p", { class: "says soft" }, [task.says, task.measure].filter(Boolean).join("; "))];
    const box = el("article", { class: "panel", data: { task: task.name } }, head);
    if (!drawn.length) {
      box.append(el("div", { class: "none" }, found.length ? notes.map(note => el("p", {}, note.textContent)) : el("p", {}, "No model is shown.")));
      return box;
    }
    const share = now.axis === "share", most = Math.max(...drawn.map(line => line.n_heads));
    const unit = line => share ? line.n_heads : 1;
    const xmax = share ? 1 : most;
    const counts = now.axis === "log" ? [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000].filter(tick => tick <= most) : ticks(0, xmax, width < 400 ? 4 : 6);
    const chart = plot({
      width, height: Math.round(Math.min(400, Math.max(240, width * .66))),
      x: { max: xmax, log: now.axis === "log", ticks: counts, show: share ? value => `${+(100 * value).toFixed(1)} %` : String, label: share ? "share of heads kept" : "number of heads kept" },
      y: { ...y, ticks: ticks(y.min, y.max, 5), digits: 2, label: "explained effect" },
      label: `Explained effect against heads kept, task ${task.name}: ` + drawn.map(line => {
        const cross = crossing(line);
        return `${line.model} ${known(cross?.k) ? `reaches ${percent} % with ${cross.k} of ${line.n_heads} heads` : `does not reach ${percent} %`}`;
      }).join("; "),
      step: share ? 1 / drawn[0].n_heads : 1,
      move: (at, x, ypos) => readOff(drawn, share, at, x, ypos),
    });
    const { w, px, py, inner, over } = chart;
    for (const line of drawn) {
      const { curve } = line, scaled = ks => ks.map(k => k / unit(line));
      const grey = { "--r": drawn.length > 1 ? `color-mix(in srgb, ${colour(line.model)} 35%, var(--grey))` : "var(--grey)" };
      if (curve.random) {
        const ks = scaled(curve.random.ks);
        if (curve.random.low && curve.random.high) chart.band(ks, curve.random.low, curve.random.high, "random-band", grey);
        chart.line(ks, curve.random.mean, "random", grey);
      }
      if (curve.matched) chart.line(scaled(curve.matched.ks), curve.matched.mean, "matched", grey);
    }
    const ty = py(data.threshold);
    inner.append(svg("line", { class: "threshold", x1: 0, x2: w, y1: ty, y2: ty }));
    for (const line of drawn) {
      const { curve } = line, own = { "--c": colour(line.model) }, ks = curve.ks.map(k => k / unit(line));
      if (curve.low && curve.high) chart.band(ks, curve.low, curve.high, "band", own);
      chart.line(ks, curve.explained, twins.has(line.model) ? "line twin" : "line", own);
    }
    const notesBelow = drawPublished(task, drawn, share, chart), lost = lostIn(task, drawn);
    drawCrossings(task, drawn, unit, chart, ty);
    const marks = svg("g");
    over.append(marks);
    plots.push({ chart, marks, drawn, unit });
    box.append(chart.root, el("div", {}, lost, notesBelow, notes));
    return box;
  }

  // Why a model that is drawn has no multiplier against its dense one.
  function lostIn(task, drawn) {
    const there = name => drawn.some(line => line.model === name);
    return declared.filter(pair => pair.every(there)).map(pair => [pair, multiplier(task.name, ...pair)]).filter(([, row]) => row?.reason)
      .map(([[, other], row]) => el("p", { class: "note lost" }, `${called(other)}: no multiplier, ${row.reason}.`));
  }

  function drawCrossings(task, drawn, unit, { w, px, over }, ty) {
    const crossed = drawn.map(line => ({ line, k: crossing(line)?.k })).filter(({ k }) => known(k));
    const paired = pairUp() ? [now.dense, now.sparse].map(name => crossed.find(({ line }) => line.model === name)) : [];
    const row = pairUp() ? multiplier(task.name) : null, joined = paired.length === 2 && paired.every(Boolean) && known(row?.value);
    // Labels of neighbours stand together right of the last of them, off each other's curves.
    const at = crossed.map(({ line, k }) => px(k / unit(line)));
    const clear = from => { let end = from; for (const x of [...at].sort((a, b) => a - b)) if (x > end && x < end + 64) end = x; return end; };
    let step = joined ? 1 : 0;
    for (const { line, k } of crossed) {
      const x = px(k / unit(line)), own = { "--c": colour(line.model) };
      over.append(svg("line", { class: "drop", x1: x, x2: x, y1: ty - 6, y2: ty + 6, style: own }));
      if (joined && paired.some(one => one.line === line)) continue;
      const end = clear(x), left = end > w - 70;
      over.append(svg("text", { class: "k halo", x: left ? x - 6 : end + 9, y: ty + 18 + 15 * step++, "text-anchor": left ? "end" : "start", style: own }, `k${level} = ${k}`));
    }
    if (!joined) return;
    const [a, b] = paired.map(({ line, k }) => px(k / unit(line)));
    over.append(svg("line", { class: "join", x1: a, x2: b, y1: ty, y2: ty }),
      ...paired.map(({ line }, i) => svg("circle", { class: "dot", cx: [a, b][i], cy: ty, r: 4.5, style: { "--c": colour(line.model) } })));
    // Below the middle of the line; where the line is short, beside its right end, off the curves.
    const short = Math.abs(a - b) < 60, right = Math.max(a, b), place = !short ? [(a + b) / 2, "middle"] : right < w - 50 ? [right + 8, "start"] : [Math.min(a, b) - 8, "end"];
    over.append(svg("text", { class: "times halo", x: place[0], y: ty + 20, "text-anchor": place[1] }, `${fixed(row.value, 1)}x`));
  }

  function drawPublished(task, drawn, share, { px, py, over }) {
    return data.published.filter(one => one.task === task.name).map(one => {
      const same = drawn.find(line => matches(models.find(model => model.name === line.model), one.dense));
      const base = drawn.find(line => line.model === now.dense) || drawn[0];
      const sides = [[one.dense, "dense"], [one.sparse, "sparse"]].filter(([side]) => side && known(side.k));
      for (const [side, kind] of sides) {
        const at = share ? side.k / side.heads : same ? side.k : side.k / side.heads * base.n_heads;
        const x = px(at), y = py(one.threshold);
        over.append(kind === "dense" ? svg("circle", { class: "published", cx: x, cy: y, r: 4.5 }, svg("title", {}, side.name))
          : svg("path", { class: "published", d: `M${x} ${y - 6}l6 6-6 6-6-6z` }, svg("title", {}, side.name)));
      }
      const where = same && !share ? "" : share || sides.every(([side]) => side.heads === base.n_heads) ? "" : ", at its share of heads";
      const said = sides.map(([side]) => `${side.name} ${side.k} of ${side.heads}`).join(", ");
      return el("p", { class: "note soft" }, `published, ${one.dense.name}${where}: ${said}${known(one.multiplier) ? `, ${fixed(one.multiplier, 1)}x` : ""} (${one.source}).`);
    });
  }

  function readOff(drawn, share, at, x, y) {
    const dots = [], rows = [];
    for (const line of drawn) {
      const { curve } = line, k = Math.min(line.n_heads, at * (share ? line.n_heads : 1));
      let index = 0;
      curve.ks.forEach((value, i) => { if (Math.abs(value - k) < Math.abs(curve.ks[index] - k)) index = i; });
      const near = curve.ks[index], enters = near > 0 ? ranksOf(line)?.order[near - 1]?.name : null;
      const between = span(curve.low?.[index], curve.high?.[index], value => fixed(value, 3));
      dots.push([near / (share ? line.n_heads : 1), curve.explained[index], colour(line.model)]);
      rows.push(el("div", { class: "top" }, swatch(line.model), line.model),
        el("div", {}, `${near} of ${line.n_heads} heads: ${fixed(curve.explained[index], 3)}`),
        ...(between ? [el("div", { class: "soft" }, `95 % interval ${between}`)] : []),
        ...(enters ? [el("div", { class: "soft" }, `${enters} enters`)] : []));
    }
    showTip(x, y, rows);
    return dots;
  }

  function drawMarks(picked) {
    for (const { chart, marks, drawn, unit } of plots) {
      const line = picked && drawn.find(one => one.model === picked.model), own = line && ranksOf(line)?.named.get(picked.head);
      if (!own) { marks.replaceChildren(); continue; }
      const x = chart.px(own.rank / unit(line)), end = x > chart.w - 30 ? "end" : x < 20 ? "start" : "middle";
      marks.replaceChildren(svg("g", { class: "mark", style: { "--c": colour(line.model) }, data: { head: picked.head, k: own.rank } },
        svg("line", { x1: x, x2: x, y1: 0, y2: chart.h }), svg("path", { d: `M${x} 0l-4-6h8z` }),
        svg("text", { class: "halo", x, y: -8, "text-anchor": end }, picked.head)));
    }
  }

  // 2. Two models.
  function drawPair() {
    if (models.length < 2) return;
    const options = [["", "none"], ...models.map(({ name }) => [name, name])];
    const set = side => value => { now[side] = value || null; if (value) now.shown.add(value); drawLegend(); drawPair(); drawCurves(); };
    byId("pair-controls").replaceChildren(...["dense", "sparse"].map(side => select(side, options, now[side] || "", set(side))));
    byId("pair-controls").querySelectorAll("select").forEach((box, i) => { box.id = ["pair-dense", "pair-sparse"][i]; });
    byId("pair-caption").textContent = `Heads the first needs / heads the second needs at ${percent} % of the effect: above 1 the second needs fewer. In brackets the 95 % interval.`;
    if (!pairUp()) {
      byId("pair-table").replaceChildren(el("p", {}, now.dense && now.sparse ? "Choose two different models." : "Choose two models to compare them."));
      return;
    }
    const needs = (model, task) => { const cross = crossing(lineOf(model, task)); return el("td", { class: "n" }, known(cross?.k) ? String(cross.k) : "\u2013"); };
    const rows = tasks.map(task => {
      const row = multiplier(task.name), between = row && span(row.low, row.high);
      return el("tr", { data: { task: task.name } }, el("td", {}, task.name), needs(now.dense, task.name), needs(now.sparse, task.name),
        known(row?.value) ? el("td", { class: "n times" }, `${fixed(row.value, 1)}x`) : el("td", { class: "n soft" }, "none"),
        el("td", { class: "reason soft" }, known(row?.value) ? between && `(${between})` : row?.reason || "not measured"));
    });
    byId("pair-table").replaceChildren(el("div", { class: "scroll" }, el("table", { class: "fit" },
      el("thead", {}, el("tr", {}, el("th", {}, "task"), el("th", { class: "n" }, "heads, dense"), el("th", { class: "n" }, "heads, sparse"), el("th", { class: "n" }, "multiplier"), el("th", {}))),
      el("tbody", {}, rows))));
  }

  // Every declared pair at every level.
  function drawMultipliers() {
    if (!declared.length) return;
    const found = declared.flatMap(([dense, other]) => tasks.map(task => ({ dense, other, task, row: multiplier(task.name, dense, other) })));
    const keys = [...new Set(found.flatMap(({ row }) => Object.keys(row?.levels || {})))].sort((a, b) => a - b);
    const cell = (row, key) => {
      const one = row.levels[key];
      return el("td", { class: "n", data: { level: key } }, known(one.value) ? el(key === level ? "b" : "span", {}, `${fixed(one.value, 1)}x`) : "none", known(one.value) && el("span", { class: "soft" }, span(one.low, one.high)));
    };
    const rows = found.map(({ dense, other, task, row }) => {
      const reasons = [...new Set(keys.map(key => row?.levels?.[key].reason).filter(Boolean))], all = reasons.length === 1 && keys.every(key => row.levels[key].reason);
      return el("tr", { class: task === tasks[0] && "first", data: { task: task.name, dense, model: other } },
        el("td", { class: "name" }, swatch(other), " ", called(other), el("span", { class: "soft" }, `against ${dense}`)), el("td", {}, task.name),
        !row?.levels ? el("td", { class: "soft", colspan: keys.length + 1 }, "not measured")
          : all ? el("td", { class: "reason soft", colspan: keys.length + 1 }, `no multiplier: ${reasons[0]}`)
            : [...keys.map(key => cell(row, key)), el("td", { class: "reason soft" }, reasons.join("; "))]);
    });
    byId("multiplier-table").replaceChildren(el("div", { class: "scroll" }, el("table", { class: "fit" },
      el("thead", {}, el("tr", {}, el("th", {}, "model"), el("th", {}, "task"), keys.map(key => el("th", { class: "n" }, `at ${key} %`)), el("th", {}))), el("tbody", {}, rows))));
  }

  // 3. Numbers.
  function drawNumbers() {
    const keys = [...new Set(["80", "90", "95", level])].filter(key => data.lines.some(line => crossing(line, key))).sort((a, b) => a - b);
    const n = (...inside) => el("td", { class: "n" }, inside), edges = data.lines.some(line => known(line.edges_mean));
    const needed = (line, key) => {
      const cross = crossing(line, key), between = cross && span(cross.low, cross.high, String);
      if (!known(cross?.k)) return n("not reached", between && el("span", { class: "soft" }, between));
      return n(String(cross.k), between && el("span", { class: "soft" }, between),
        known(cross.stay) && cross.stay !== cross.k && el("span", { class: "soft" }, `for good at ${cross.stay}`));
    };
    const rows = models.flatMap(model => tasks.map((task, i) => {
      const line = lineOf(model.name, task.name);
      const start = [el("td", { class: "name" }, swatch(model.name), " ", called(model.name)), el("td", {}, task.name, line && el("span", { class: "soft" }, line.measure))];
      const cells = !line ? [el("td", { class: "soft", colspan: 6 + edges + keys.length }, "not measured")]
        : [n(fixed(line.clean)), n(fixed(line.none)), ...(edges ? [n(known(line.edges_mean) ? openShare(line.edges_mean) : "all")] : []), ...(line.curve
          ? [...keys.map(key => needed(line, key)), n(fixed(line.curve.cpr)), n(fixed(line.curve.cmd)), n(fixed(line.curve.random_cpr)),
            n(known(line.curve.beats_random) ? `${fixed(100 * line.curve.beats_random, 0)} %` : "\u2013")]
          : [el("td", { class: "reason soft", colspan: 4 + keys.length }, line.finding || "no curve")])];
      return el("tr", { class: i === 0 && "first" }, start, cells);
    }));
    const titles = ["clean", "without heads", ...(edges ? ["edges open"] : []), ...keys.map(key => `k${key}`), "CPR", "CMD", "random CPR", "beats random"];
    byId("number-table").replaceChildren(el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, el("th", {}, "model"), el("th", {}, "task"), titles.map(title => el("th", { class: "n" }, title)))), el("tbody", {}, rows))));
  }

  // 4. Head maps, a fold for each model; drawn when first opened. Of a sparse model, scores or edges.
  const openShare = value => `${value > 0 && value < 1e-4 ? "under 0.01" : +(100 * value).toPrecision(3)} %`;
  const SCORES = byId("map-says").textContent;
  const EDGES = "The share of a head's edges that are open on the prompts tested: from 0.01 % (pale) to 100 % (dark), logarithmic and the same in every map. A head that keeps none is blank.";
  function drawMapControls() {
    if (!data.lines.some(line => line.edges)) return;
    byId("map-controls").replaceChildren(select("colour is", [["score", "the head's score"], ["edges", "its open edges"]], now.map, value => {
      now.map = value;
      byId("map-says").textContent = value === "edges" ? EDGES : SCORES;
      drawMaps();
    }));
  }
  function edgeMap(line, given) {
    const open = ranked(line.edges), of = (layer, head) => line.edges[layer][head];
    const strength = value => value > 0 ? .12 + .88 * Math.max(0, Math.min(1, 1 + Math.log10(value) / 4)) : 0;
    return headMap({ ...given, score: line.edges, ranks: open,
      paint: (layer, head) => ({ name: "edges", colour: "var(--pos)", strength: strength(of(layer, head)), says: `${openShare(of(layer, head))} of its edges open` }),
      tip: (layer, head) => [el("div", { class: "top" }, headlab.headName(layer, head)), el("div", {}, `${openShare(of(layer, head))} of its edges open`),
        el("div", { class: "soft" }, `score rank ${ranksOf(line)?.named.get(headlab.headName(layer, head)).rank ?? "\u2013"}`)],
      scale: ramp("var(--pos)", "0.01 %", "100 %"), tops: open.order.slice(0, 5) });
  }
  const drawMaps = folds(models, (model, keep) => {
    const lines = tasks.map(task => lineOf(model.name, task.name)), cell = cellSize(model, lines.filter(line => line?.map).length || 1, 14);
    return tasks.map((task, i) => {
      const line = lines[i], title = el("figcaption", {}, task.name, line?.map && el("span", { class: "soft" }, line.measure));
      const none = text => el("p", { class: "none" }, text);
      if (!line?.map) return el("figure", {}, el("figcaption", {}, task.name), none(line?.finding || "Not measured."));
      const both = { model: model.name, task: task.name, cell }, edges = now.map === "edges";
      if (edges && !line.edges) return el("figure", {}, title, none("Dense: every edge is open."));
      if (edges) title.lastChild.textContent = `${openShare(line.edges_mean)} of all edges`;
      const map = edges ? edgeMap(line, both) : headMap({ ...both, ...line.map, floor: line.noise_floor, ranks: ranksOf(line), measure: `of ${line.measure}` });
      keep(map);
      const wide = Math.max(map.width, 260);
      const figure = el("figure", { style: { width: `${wide}px` } }, title, el("div", { class: "wide" }, map.root), map.under, line.finding && none(line.finding));
      return figure;
    });
  }, model => swatch(model.name));

  // 5. Heads.
  const SHOWN = 15;
  function drawHeads(picked = headlab.picked) {
    const lines = tasks.map(task => lineOf(now.model, task.name)).filter(line => line?.map);
    byId("head-controls").replaceChildren(...(models.length > 1 ? [select("model", models.map(({ name }) => [name, name]), now.model, value => { now.model = value; drawHeads(); })] : []));
    byId("head-caption").textContent = lines.length ? `The ${SHOWN} heads with the largest scores of either sign, each beside the largest of its task. Rank 1 has the highest score and is kept first. In small type the 95 % interval.` : "";
    if (!lines.length) { byId("head-table").replaceChildren(el("p", {}, "No scores for this model.")); return; }
    const limits = lines.map(line => Math.max(...line.map.score.flat().map(value => Math.abs(value ?? 0))) || 1);
    const weight = name => Math.max(...lines.map((line, i) => Math.abs(ranksOf(line).named.get(name).value ?? 0) / limits[i]));
    const names = [...ranksOf(lines[0]).named.keys()].map(name => [name, weight(name)]).sort((a, b) => b[1] - a[1]).slice(0, SHOWN).map(([name]) => name);
    const own = picked?.model === now.model ? picked.head : null;
    if (own && !names.includes(own)) names.push(own);
    headTable({ model: now.model, own, titles: lines.map(line => `${line.task}, score and rank`), groups: [{ names }], cells: name =>
      lines.map((line, i) => {
        const { value, rank, layer, head } = ranksOf(line).named.get(name), digits = digitsFor(limits[i]), depth = Math.abs(value ?? 0) / limits[i] * 30;
        const between = span(line.map.low?.[layer]?.[head], line.map.high?.[layer]?.[head], end => signed(end, digits));
        return el("td", { class: "score", style: { background: `color-mix(in srgb, var(--${value < 0 ? "neg" : "pos"}) ${depth.toFixed(1)}%, var(--paper))` } },
          el("b", {}, signed(value, digits)), el("i", { title: "rank" }, `#${rank}`), line.map.estimated?.[layer][head] && el("span", { class: "soft" }, "not run"), between && el("span", { class: "soft" }, between));
      }) });
  }

  watch(picked => {
    if (picked) now.model = picked.model;
    if (picked && !now.shown.has(picked.model)) { now.shown.add(picked.model); drawLegend(); drawCurves(); }
    drawMarks(picked);
    drawHeads(picked);
  });
  foot(({ model, head }) => tasks.map(task => [task.name, ranksOf(lineOf(model, task.name))?.named.get(head)?.rank]).filter(([, rank]) => rank)
    .map(([task, rank]) => `${task} #${rank}`).join(", "));

  function drawAll() { drawControls(); drawLegend(); drawCurves(); drawPair(); drawMultipliers(); drawNumbers(); drawMapControls(); drawMaps(); drawHeads(); }
  drawAll();
  follow(models);
  resized(panels, () => { drawCurves(); drawMaps(); });
})();

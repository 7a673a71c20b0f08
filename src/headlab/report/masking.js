"use strict";
/* The page of a masking study: scores against masked heads, verdicts, rankings, heads and answers. */
(() => {
  const { data, el, svg, byId, swatch, known, signed, span, percent, distinct, told, digitsFor, headName, grid, plot, key, stroke, ramp,
    headMap, cellSize, folds, headTable, select, follow, foot, showTip, resized, watch } = headlab;
  const { models, functions, rankings, seeds, titles } = data;
  const ACCURACY = "accuracy", COLOURS = { accuracy: "var(--c0)", published: "var(--c5)", quality: "var(--red)" };
  const scores = Object.keys(COLOURS).filter(score => data.panels.some(panel => panel.labels[score]));
  const labelOf = score => distinct(data.panels.map(panel => panel.labels[score]).filter(Boolean)).join(" or ");
  const WORDS = { below: "below the random draws", above: "above the random draws", open: "open" };
  const now = { model: "", one: models[0].name, ranking: rankings[0], seed: String(seeds[0]), score: ACCURACY, k: "", asked: functions[0].name,
    shown: new Set(scores.filter(score => score !== "published")), sort: null };

  const panelOf = (model, ranking = now.ranking) => data.panels.find(panel => panel.model === model && panel.ranking === ranking && String(panel.seed) === now.seed);
  const functionOf = (panel, name) => panel?.functions.find(one => one.name === name);
  const shownModels = () => models.filter(model => !now.model || model.name === now.model);
  const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  const share = value => known(value) ? `${percent(value)} %` : "\u2013";
  const points = value => known(value) ? signed(100 * value, 1) : "\u2013";
  const between = (low, high, show = percent) => span(low, high, value => show(value));
  const small = text => text && el("span", { class: "soft" }, text);
  const drawn = point => `${between(...point.band)} in ${counted(point.draws, "draw")}`;

  // Choices: each stands wherever it bears on what is shown, and all that are the same move together.
  const CHOICES = {
    model: ["model", models.length > 1 && [["", "all"], ...models.map(({ name }) => [name, name])]],
    one: ["model", models.length > 1 && models.map(({ name }) => [name, name])],
    ranking: ["heads ranked by", rankings.length > 1 && rankings.map(name => [name, name])],
    seed: ["seed", seeds.length > 1 && seeds.map(seed => [String(seed), String(seed)])],
    score: ["score", scores.length > 1 && scores.map(score => [score, labelOf(score)])],
    asked: ["function", functions.length > 1 && functions.map(({ name, title }) => [name, title])],
    k: ["heads masked", [["", "the most"], ...distinct(data.panels.flatMap(panel => panel.functions.flatMap(one => one.ks))).sort((a, b) => a - b).map(k => [String(k), String(k)])]],
  };
  const set = (name, value) => {
    now[name] = value;
    document.querySelectorAll(`select[data-of="${name}"]`).forEach(box => { box.value = value; });
  };
  const choices = (host, ...names) => byId(host)?.replaceChildren(...names.filter(name => CHOICES[name][1]).map(name => {
    const [label, options] = CHOICES[name], box = select(label, options, now[name], value => { set(name, value); drawAll(); });
    box.querySelector("select").dataset.of = name;
    return box;
  }));

  // 1. Scores against masked heads. K = 0 has no place on a logarithmic axis: it gets one of its own.
  const square = (x, y) => svg("rect", { class: "open", x: x - 3.5, y: y - 3.5, width: 7, height: 7 });
  const diamond = (x, y, name) => svg("path", { class: name, d: `M${x} ${y - 5}l5 5-5 5-5-5z`, data: { x, y } });
  const triangle = (x, y, name) => svg("path", { class: name, d: `M${x} ${y - 5}l5 9h-10z`, data: { x, y } });
  const PAPER = [["published", diamond, "published accuracy"], ["quality", triangle, "published COMET"]];
  const paperShown = score => now.shown.has(score) || (score === "published" && now.shown.has(ACCURACY));
  const papers = () => data.panels.some(panel => panel.functions.some(one => one.published));
  function drawLegend() {
    const chip = (text, colour, pressed, click) => el("button", { type: "button", class: "chip", "aria-pressed": String(pressed), data: { score: text }, click }, colour && swatch(colour), text);
    const chips = scores.map(score => chip(labelOf(score), COLOURS[score], now.shown.has(score), () => {
      if (!now.shown.delete(score)) now.shown.add(score);
      if (!now.shown.size) now.shown.add(score); // something is always shown
      press();
    }));
    const all = chip("all", null, now.shown.size === scores.length, () => { now.shown = new Set(scores); press(); });
    const press = () => {
      chips.forEach((button, i) => button.setAttribute("aria-pressed", String(now.shown.has(scores[i]))));
      all.setAttribute("aria-pressed", String(now.shown.size === scores.length));
      drawLines();
    };
    const grey = { "--c": "var(--grey)", "--r": "var(--grey)" }, sketch = (...inside) => [svg("g", { style: grey }, ...inside)];
    const dot = name => svg("circle", { class: name, cx: 13, cy: 6, r: 3.2 });
    byId("line-legend").replaceChildren(...[
      scores.length > 1 && el("div", { class: "models", role: "group", "aria-label": "scores shown" }, chips, scores.length > 2 && all),
      key(sketch(stroke("var(--grey)"), dot("at")), "top heads"),
      key(sketch(svg("rect", { class: "band", x: 0, y: 0, width: 26, height: 12 }), stroke("var(--grey)", "random"), dot("open")), "random heads, band of the draws"),
      key(sketch(stroke("var(--grey)", "matched")), "random heads of the same layers"),
      key(sketch(square(13, 6)), "no head masked"),
      papers() && key([svg("g", {}, diamond(7, 6, "published full"), triangle(20, 6, "published full"))], "published: accuracy, COMET; hollow: random"),
    ].filter(Boolean));
  }
  const tipOf = ({ panel, one }, k) => {
    const at = one.ks.indexOf(k), rows = [el("div", { class: "top" }, `${panel.model}, ${titles[one.name]}`),
      el("div", { class: "soft" }, k ? `${k} of ${panel.total} heads masked (${percent(k / panel.total)} %), n = ${one.n}, ${counted(one.lines.random[ACCURACY][0].draws, "draw")}` : `no head masked, n = ${one.n}`)];
    if (k && at < 0) return [...rows, el("div", {}, "Not measured.")];
    const line = (word, point, sure) => el("div", {}, `${word} `, el("b", {}, share(point.mean)), el("span", { class: "soft" }, ` ${sure}`));
    for (const score of scores.filter(score => now.shown.has(score) && panel.labels[score])) {
      rows.push(el("div", { class: "top" }, swatch(COLOURS[score]), panel.labels[score]));
      const none = one.unmasked[score];
      if (!k) { rows.push(line("all heads", none, score === ACCURACY ? between(none.low, none.high) : "compared with itself")); continue; }
      const [top, random, matched] = ["top", "random", "matched"].map(kind => one.lines[kind][score][at]), [apart, low, high] = one.falls[score][at];
      rows.push(line("top", top, between(top.low, top.high)),
        line("random", random, `${between(random.low, random.high)}; draws ${between(...random.band)}`),
        line("same layers", matched, `${between(matched.low, matched.high)}; draws ${between(...matched.band)}`),
        el("div", { class: "soft" }, `random \u2212 top ${points(apart)} points (${between(low, high, points)}): ${WORDS[one.verdicts[score][at]]}`));
    }
    if (one.published) rows.push(el("div", { class: "soft" }, `published, ${one.published.k} heads: accuracy ${one.published.top.published} % top, ${one.published.random.published} % random; COMET ${one.published.top.quality} and ${one.published.random.quality}`));
    return rows;
  };
  let plots = [];
  const placeOf = first => k => k ? Math.log2(k) : Math.log2(first) - 1;
  function drawLines() {
    plots = [];
    const row = found => {
      const ks = distinct(found.flatMap(({ one }) => one.ks)).sort((a, b) => a - b);
      const last = Math.max(...ks, ...found.map(({ one }) => one.published?.k ?? 0)), first = Math.min(...ks, ...found.map(({ one }) => one.published?.k ?? Infinity));
      return { ks, first, last, y: { min: -4, max: 104, ticks: [0, 25, 50, 75, 100], digits: 0 } };
    };
    grid(byId("line-grid"), { shape: .85, low: 220, high: 300, least: 230, row,
      rows: shownModels().map(({ name, layers, heads }) => ({ name, says: `${layers * heads} heads`, data: { model: name } })),
      columns: functions.map(({ name, title }) => ({ name: title, of: name, data: { function: name } })),
      at: (line, column) => { const panel = panelOf(line.name), one = functionOf(panel, column.of); return one ? { panel, one } : null; },
      facts: ({ one }) => `n = ${one.n}`, tile: drawTile });
    mark(headlab.picked);
    const draws = data.panels.flatMap(panel => panel.functions.map(one => one.lines.random[ACCURACY][0].draws));
    byId("line-caption").textContent = [
      told(data.panels.map(panel => panel.where), list => `Masked ${list}.`),
      "Accuracy: of calculations the right number, else word F1 of at least 0.6 with the gold answer.",
      "Lines at the dots of the top heads: 95 % interval over questions.",
      told(draws.map(count => counted(count, "draw")), list => `Band: what ${Math.min(...draws) >= 20 ? "95 % of " : "all "}${list} of random heads (without the top ones) lie between.`),
      scores.length > 1 && "The other scores compare with the unmasked answer too, so that they have nothing to say where no head is masked.",
      papers() && "Grey: what the paper reports for this model, its accuracy by its own rule.",
    ].filter(Boolean).join(" ");
  }
  function drawTile(found, { column, width, height, first, shared }) {
    const { panel, one } = found, { ks } = shared, place = placeOf(shared.first), stops = [0, ...ks].map(place), kAt = at => [0, ...ks][stops.indexOf(at)];
    const own = scores.filter(score => now.shown.has(score) && panel.labels[score]);
    const chart = plot({ width, height, step: 1, x: { min: place(0) - .35, max: place(shared.last) + .3, ticks: stops, stops, show: at => String(kAt(at)), label: "# masked heads" },
      y: { ...shared.y, label: first ? "score, %" : "" },
      label: `Scores against masked heads, ${panel.model}, ${column.name}. ${one.ks.map((k, i) => `${k} heads: ${own.map(score => `${panel.labels[score]} ${["top", "random"].map(kind => `${kind} ${share(one.lines[kind][score][i].mean)}`).join(", ")}`).join("; ")}.`).join(" ")}`,
      move: (at, x, y) => {
        const k = kAt(at), i = one.ks.indexOf(k);
        showTip(x, y, tipOf(found, k));
        return own.flatMap(score => k ? i < 0 ? [] : ["top", "random", "matched"].map(kind => [at, 100 * one.lines[kind][score][i].mean, COLOURS[score]]) : score === ACCURACY ? [[at, 100 * one.unmasked[score].mean, COLOURS[score]]] : []);
      } });
    const { h, w, px, inner, over } = chart, xs = one.ks.map(place), y = value => chart.py(100 * value), hundred = values => values.map(value => known(value) ? 100 * value : value);
    const apart = (place(0) + place(shared.ks[0])) / 2;
    inner.append(svg("line", { class: "gap", x1: px(apart), x2: px(apart), y1: 0, y2: h }));
    for (const score of own) {
      const colours = { "--c": COLOURS[score], "--r": COLOURS[score] }, { top, random, matched } = Object.fromEntries(Object.entries(one.lines).map(([kind, line]) => [kind, line[score]]));
      const none = one.unmasked[score], group = svg("g", { class: "marks", style: colours, data: { score } });
      if (score === ACCURACY && known(none.mean)) {
        inner.append(svg("line", { class: "whole", x1: px(place(0)), x2: w, y1: y(none.mean), y2: y(none.mean), style: colours }));
        group.append(svg("line", { class: "whisker", x1: px(place(0)), x2: px(place(0)), y1: y(none.low), y2: y(none.high) }), square(px(place(0)), y(none.mean)));
      }
      chart.band(xs, hundred(random.map(point => point.band[0])), hundred(random.map(point => point.band[1])), "random-band", colours);
      chart.line(xs, hundred(matched.map(point => point.mean)), "matched", colours);
      chart.line(xs, hundred(random.map(point => point.mean)), "random", colours);
      chart.line(xs, hundred(top.map(point => point.mean)), "line thin", colours);
      one.ks.forEach((k, i) => {
        const x = px(place(k));
        if (known(random[i].mean)) group.append(svg("circle", { class: "open", cx: x, cy: y(random[i].mean), r: 2.8, data: { kind: "random", k } }));
        if (known(top[i].low) && known(top[i].high)) group.append(svg("line", { class: "whisker", x1: x, x2: x, y1: y(top[i].low), y2: y(top[i].high) }));
        if (known(top[i].mean)) group.append(svg("circle", { class: "at", cx: x, cy: y(top[i].mean), r: 3.2, data: { kind: "top", k } }));
      });
      over.append(group);
    }
    if (one.published) for (const [score, shape, says] of PAPER) for (const kind of ["random", "top"]) {
      const value = one.published[kind][score];
      if (paperShown(score)) over.append(build(shape(px(place(one.published.k)), y(value / 100), `published${kind === "top" ? " full" : ""}`), `${says}, ${kind}: ${value} %`));
    }
    const marks = svg("g");
    over.append(marks);
    plots.push({ chart, marks, panel, one, place });
    return chart.root;
  }
  const build = (node, title) => { node.append(svg("title", {}, title)); return node; };
  // The chosen head: where it is masked for the first time.
  const rankIn = (panel, one, head) => one.order.indexOf(numberOf(panel, head)) + 1;
  const numberOf = (panel, head) => { const [layer, place] = headlab.placeOf(head), shape = models.find(model => model.name === panel.model); return layer * shape.heads + place; };
  const firstMasked = (one, rank) => one.ks.find(k => k >= rank);
  function mark(picked) {
    for (const { chart, marks, panel, one, place } of plots) {
      const k = picked?.model === panel.model ? firstMasked(one, rankIn(panel, one, picked.head)) : null;
      if (!k) { marks.replaceChildren(); continue; }
      const x = chart.px(place(k));
      marks.replaceChildren(svg("g", { class: "mark", style: { "--c": "var(--ink)" }, data: { head: picked.head, k } },
        svg("line", { x1: x, x2: x, y1: 0, y2: chart.h }), svg("path", { d: `M${x} 0l-4-6h8z` }),
        svg("text", { class: "halo", x, y: -8, "text-anchor": x > chart.w - 30 ? "end" : "middle" }, picked.head)));
    }
  }

  // A table whose columns sort it: rows of [cell, what it is sorted by] for each column.
  function sortable(host, columns, rows) {
    const body = el("tbody"), ordered = () => {
      if (!now.sort) return rows;
      const { column, way } = now.sort, at = row => row[column][1];
      const compare = (a, b) => typeof a === "string" ? a.localeCompare(b) : a - b;
      return [...rows].sort((a, b) => known(at(a)) || typeof at(a) === "string" ? known(at(b)) || typeof at(b) === "string" ? way * compare(at(a), at(b)) : -1 : 1);
    };
    const show = () => {
      body.replaceChildren(...ordered().map(row => row.node));
      heads.forEach((head, i) => head.setAttribute("aria-sort", now.sort?.column !== i ? "none" : now.sort.way > 0 ? "ascending" : "descending"));
    };
    const heads = columns.map(([title, number], i) => el("th", { class: number && "n", scope: "col" }, el("button", { type: "button", class: "sort", click: () => {
      now.sort = now.sort?.column !== i ? { column: i, way: 1 } : now.sort.way > 0 ? { column: i, way: -1 } : null; // a third click: as it was
      show();
    } }, title)));
    rows.forEach(row => { row.node = el("tr", { data: row.data }, row.map(([cell]) => cell)); });
    host.replaceChildren(el("div", { class: "scroll" }, el("table", { class: "shares verdicts" }, el("thead", {}, el("tr", {}, heads)), body)));
    show();
  }
  const cell = (of, ...inside) => el("td", { class: "n", data: { of } }, inside);
  const scored = panel => panel.labels[now.score] ? now.score : ACCURACY;

  // 2. Verdicts.
  function drawVerdicts() {
    const several = models.length > 1, order = new Map(functions.map(({ name }, i) => [name, i]));
    const rows = shownModels().flatMap(({ name: model }) => (panelOf(model)?.functions ?? []).flatMap(one => one.ks.map((k, i) => {
      const panel = panelOf(model), score = scored(panel), [top, random, matched] = ["top", "random", "matched"].map(kind => one.lines[kind][score][i]);
      const none = score === ACCURACY ? one.unmasked[score] : { mean: null }, [apart, low, high] = one.falls[score][i], verdict = one.verdicts[score][i];
      return Object.assign([
        several && [el("td", { class: "name" }, model), model],
        [el("td", { class: "name" }, titles[one.name]), order.get(one.name)],
        [cell("n", String(one.n)), one.n],
        [cell("k", String(k), small(`${percent(k / panel.total)} %`)), k],
        [cell("none", share(none.mean), small(between(none.low, none.high))), none.mean],
        [cell("top", el("b", {}, share(top.mean)), small(between(top.low, top.high))), top.mean],
        [cell("random", share(random.mean), small(drawn(random))), random.mean],
        [cell("matched", share(matched.mean), small(drawn(matched))), matched.mean],
        [cell("fall", points(apart), small(between(low, high, points))), apart],
        [el("td", { class: "verdict", data: { of: "verdict" } }, verdict === "open" ? WORDS.open : el("b", {}, WORDS[verdict])), ["below", "open", "above"].indexOf(verdict)],
      ].filter(Boolean), { data: { model, function: one.name, k } });
    })));
    if (!rows.length) { byId("verdict-table").replaceChildren(el("p", { class: "soft" }, "Not measured.")); return; }
    sortable(byId("verdict-table"), [several && ["model"], ["function"], ["n", 1], ["K", 1], ["all heads", 1], ["top K", 1], ["random K", 1], ["same layers", 1], ["random \u2212 top", 1], ["the top heads are"]].filter(Boolean), rows);
    byId("verdict-caption").textContent = [
      `Percent, ${labelOf(now.score)}. In small type: the 95 % interval over questions; of random heads, what the draws lie between. random \u2212 top: mean over the same questions, in points.`,
      "below the random draws: under all of them, and the difference is beyond its interval; above: the other way round; open: neither. A click on a title sorts.",
    ].join(" ");
  }

  // 3. The ranking: how well the probe does, or what else ordered the heads.
  const METHODS = {
    gates: "gates that were fitted to the training answers: the share that says a head is needed",
    ablate: "the log-probability that the right answer of training questions loses without a head",
    attribute: "a gradient's estimate of the log-probability that the right answer of training questions loses without a head",
  };
  function drawRanked() {
    byId("ranked-box").replaceChildren(...shownModels().flatMap(({ name }) => {
      const panel = panelOf(name), title = models.length > 1 && el("h3", {}, name);
      if (!panel) return [title, el("p", { class: "soft" }, "Not measured.")];
      const names = Object.keys(titles).filter(one => functionOf(panel, one) || known(panel.probe?.recalls?.[one])), { probe } = panel;
      const W = 190, level = value => 6 + value * (W - 12), mark = (word, value, colour) => el("tr", {}, el("td", {}, word), el("td", { class: "n" }, el("b", {}, share(value))),
        el("td", {}, svg("svg", { class: "range", width: W, height: 16, "aria-hidden": "true", style: { "--c": colour } }, svg("line", { class: "ground", x1: 6, x2: W - 6, y1: 8, y2: 8 }), known(value) && svg("line", { class: "between", x1: 6, x2: level(value), y1: 8, y2: 8 }), known(value) && svg("circle", { cx: level(value), cy: 8, r: 5 }))));
      const says = probe ? el("p", {}, `A probe was trained on ${probe.n_train} answers to name the function from the heads' outputs. Of ${probe.n_test} answers it has not seen it names:`)
        : el("p", { class: "line" }, `By ${panel.ranking}: ${METHODS[panel.ranking] ?? "scores of its own"}. No probe was trained.`);
      return [title, says, probe && el("div", { class: "scroll" }, el("table", { class: "right probe" }, el("tbody", {}, mark("the probe", probe.accuracy, "var(--accent)"), mark("always the most frequent", probe.majority, "var(--grey)"), mark("trained on shuffled labels", probe.shuffled, "var(--grey)")))),
        el("div", { class: "scroll" }, el("table", { class: "right recalls" },
          el("thead", {}, el("tr", {}, el("th", {}, "function"), probe && el("th", { class: "n" }, "recall"), el("th", { class: "n" }, "training answers right"), el("th", { class: "n" }, "elbow"))),
          el("tbody", {}, names.map(of => {
            const one = functionOf(panel, of);
            return el("tr", { data: { function: of } }, el("td", {}, titles[of]), probe && cell("recall", share(probe.recalls[of])), cell("right", share(panel.train_right[of])),
              cell("elbow", one ? counted(one.elbow, "head") : "\u2013", one && small(`${percent(one.elbow / panel.total)} %`)));
          })))),
        el("p", { class: "soft" }, `${probe ? "recall: the share of a function's answers that the probe names. " : ""}training answers right: by the whole model. elbow: where the curve of sorted scores is farthest from its chord.`)];
    }).filter(Boolean));
  }

  // 4. Rankings compared.
  function drawRankings() {
    if (!byId("ranking-table")) return;
    const bodies = shownModels().flatMap(({ name: model }) => {
      const panels = rankings.map(ranking => panelOf(model, ranking));
      return functions.map(({ name, title }) => {
        const own = panels.map(panel => functionOf(panel, name)), ks = distinct(own.flatMap(one => one?.ks ?? [])).sort((a, b) => a - b);
        const rows = ks.map(k => {
          const at = own.map((one, i) => { const place = one ? one.ks.indexOf(k) : -1, score = panels[i] && scored(panels[i]); return place < 0 ? null : { top: one.lines.top[score][place], random: one.lines.random[score][place], verdict: one.verdicts[score][place] }; });
          const found = at.filter(Boolean), least = Math.min(...found.map(({ top }) => top.mean)), mean = found.reduce((sum, { random }) => sum + random.mean, 0) / found.length;
          return el("tr", { data: { k } }, el("td", {}, String(k)), at.map((one, i) => one ? el("td", { class: "n", data: { ranking: rankings[i] } }, one.top.mean === least ? el("b", {}, share(one.top.mean)) : share(one.top.mean), small(between(one.top.low, one.top.high)), one.verdict !== "open" && small(one.verdict)) : el("td", { class: "n" }, "\u2013")),
            cell("random", share(mean), small(between(Math.min(...found.map(({ random }) => random.band[0])), Math.max(...found.map(({ random }) => random.band[1]))))));
        });
        return el("tbody", { data: { model, function: name } }, el("tr", {}, el("th", { scope: "rowgroup", colspan: 2 + rankings.length }, el("span", {}, models.length > 1 ? `${model}, ${title}` : title))), rows.length ? rows : el("tr", {}, el("td", { class: "soft", colspan: 2 + rankings.length }, "Not measured")));
      });
    });
    byId("ranking-table").replaceChildren(el("div", { class: "scroll" }, el("table", { class: "shares" },
      el("thead", {}, el("tr", {}, el("th", {}, "K"), rankings.map(ranking => el("th", { class: "n" }, ranking)), el("th", { class: "n" }, "random heads"))), bodies)));
  }

  // 5. Crossed.
  function drawCross() {
    if (!byId("cross-tables")) return;
    byId("cross-tables").replaceChildren(...shownModels().flatMap(({ name }) => {
      const panel = panelOf(name), title = models.length > 1 && el("h3", {}, name);
      if (!panel?.cross.length) return [title, el("p", { class: "soft" }, "Not measured.")];
      const score = scored(panel), shade = value => known(value) ? { background: `color-mix(in srgb, ${COLOURS[score]} ${(30 * value).toFixed(1)}%, var(--paper))` } : null;
      const own = functions.filter(one => functionOf(panel, one.name));
      const line = (heads, say, at) => el("tr", { data: { heads } }, el("th", { scope: "row" }, say), own.map(one => {
        const { found: [mean, low, high], paper } = at(one.name), text = share(mean);
        return el("td", { data: { asked: one.name }, style: shade(mean) }, heads === one.name ? el("b", {}, text) : text, small(between(low, high)), paper && small(`paper${score === "quality" ? ", COMET" : ""}, at its elbow: ${paper} %`));
      }));
      const none = one => { const point = functionOf(panel, one).unmasked[score]; return { found: score === ACCURACY ? [point.mean, point.low, point.high] : [null] }; };
      return [title, el("div", { class: "scroll" }, el("table", { class: "cross", data: { model: name } },
        el("thead", {}, el("tr", {}, el("th", {}, "heads masked"), own.map(one => el("th", { class: "n" }, one.title)))),
        el("tbody", {}, line("", "none", none), own.map(({ name: heads, title: of }) => {
          const { ks } = functionOf(panel, heads), k = now.k ? Number(now.k) : ks[ks.length - 1];
          return line(heads, [of, small(ks.includes(k) ? `${k} heads` : "not measured")], asked => {
            const row = panel.cross.find(row => row.heads_of === heads && row.asked === asked && row.k === k);
            return { found: row?.scores[score] ?? [null], paper: !now.k && row?.published?.[score] };
          });
        }))))];
    }).filter(Boolean));
  }

  // 6. Boosted.
  function drawBoost() {
    if (!byId("boost-table")) return;
    const wide = 6, rows = shownModels().flatMap(({ name }) => {
      const panel = panelOf(name);
      return (panel?.functions ?? []).map(one => el("tbody", { data: { model: name, function: one.name } },
        el("tr", {}, el("th", { scope: "rowgroup", colspan: wide }, el("span", {}, models.length > 1 ? `${name}, ${titles[one.name]}` : titles[one.name]))),
        one.lines.boosted ? one.ks.map((k, i) => {
          const none = one.unmasked[ACCURACY], top = one.lines.boosted[ACCURACY][i], random = one.lines["boosted-random"]?.[ACCURACY][i], [apart, low, high] = one.gains[i];
          return el("tr", { data: { k } }, el("td", {}, String(k)), cell("none", share(none.mean), small(between(none.low, none.high))), cell("top", el("b", {}, share(top.mean)), small(between(top.low, top.high))),
            cell("random", random ? share(random.mean) : "\u2013", random && small(drawn(random))), cell("gain", points(apart), small(between(low, high, points))));
        }) : el("tr", {}, el("td", { class: "soft", colspan: wide }, "Training answers were too few, all right or all wrong: there is no direction to boost along."))));
    });
    byId("boost-table").replaceChildren(el("div", { class: "scroll" }, el("table", { class: "shares right" },
      el("thead", {}, el("tr", {}, el("th", {}, "K"), ["all heads", "boosted, top", "boosted, random", "difference"].map(text => el("th", { class: "n" }, text)))), rows)));
  }

  // 7. Heads.
  const ranks = new Map();
  const ranksOf = (panel, one) => { // in the order in which they are masked
    if (!ranks.has(one)) {
      const width = one.map[0].length, order = one.order.map((number, i) => { const layer = Math.floor(number / width), head = number % width; return { layer, head, value: one.map[layer][head], rank: i + 1, name: headName(layer, head) }; });
      ranks.set(one, { order, named: new Map(order.map(head => [head.name, head])) });
    }
    return ranks.get(one);
  };
  const limitOf = one => Math.max(...one.map.flat().map(value => Math.abs(value ?? 0))) || 1;
  const maskedFrom = (one, rank) => { const k = firstMasked(one, rank); return k ? `masked from K = ${k} on` : "never masked"; };
  const LEAST = 260;
  const drawMaps = folds(models, (model, keep) => {
    const panel = panelOf(model.name), own = functions.map(({ name }) => functionOf(panel, name)), size = cellSize(model, own.filter(Boolean).length || 1, 10, LEAST);
    return functions.map(({ name, title }, i) => {
      const one = own[i];
      if (!one) return el("figure", {}, el("figcaption", {}, title), el("p", { class: "none" }, "Not measured."));
      const limit = limitOf(one), digits = digitsFor(limit), order = ranksOf(panel, one), most = one.ks[one.ks.length - 1], at = (layer, head) => order.named.get(headName(layer, head));
      const map = headMap({ model: model.name, task: name, of: `for ${title}`, score: one.map, cell: size, ranks: order, tops: order.order.slice(0, 5),
        scale: one.map.flat().every(value => !(value < 0)) ? ramp("var(--pos)", "0", signed(limit, digits)) : null,
        dotted: (layer, head) => at(layer, head).rank <= most,
        paint: (layer, head) => {
          const { value, rank } = at(layer, head);
          return { name: value < 0 ? "neg" : "pos", colour: `var(--${value < 0 ? "neg" : "pos"})`, strength: Math.abs(value ?? 0) / limit, says: `${signed(value, digits)}, rank ${rank}` };
        },
        tip: (layer, head) => {
          const { value, rank, name: said } = at(layer, head);
          return [el("div", { class: "top" }, said), el("div", {}, `${signed(value, digits)} for ${title}`), el("div", { class: "soft" }, `rank ${rank} of ${panel.total}, ${maskedFrom(one, rank)}`)];
        } });
      keep(map);
      return el("figure", { style: { width: `${Math.max(map.width, LEAST)}px` } }, el("figcaption", {}, title, el("span", { class: "soft" }, `top ${most} dotted`)), el("div", { class: "wide" }, map.root), map.under);
    });
  });
  const drawMapCaption = () => { byId("map-caption").textContent = `Every map has its own scale. ${now.ranking === "probe" ? "Scores: gradient x activation on training answers; heads are ordered by size, whatever the sign. " : ""}Dots: the top heads at the largest K.`; };
  const SHOWN = 5;
  function drawHeads(picked = headlab.picked) {
    const panel = panelOf(now.one), own = picked?.model === now.one ? picked.head : null;
    byId("head-caption").textContent = "";
    if (!panel) { byId("head-table").replaceChildren(el("p", { class: "soft" }, "Not measured.")); return; }
    const found = panel.functions, title = one => titles[one.name], limits = found.map(limitOf);
    headTable({ model: now.one, own, titles: found.map(title),
      groups: found.map(one => {
        const names = ranksOf(panel, one).order.slice(0, SHOWN).map(head => head.name);
        if (own && !names.includes(own)) names.push(own);
        return { title: found.length > 1 ? title(one) : null, names };
      }),
      cells: name => found.map((one, i) => {
        const { value, rank } = ranksOf(panel, one).named.get(name);
        return el("td", { class: "score", data: { function: one.name }, style: { background: `color-mix(in srgb, var(--${value < 0 ? "neg" : "pos"}) ${(Math.abs(value ?? 0) / limits[i] * 30).toFixed(1)}%, var(--paper))` } },
          el("b", {}, signed(value, digitsFor(limits[i]))), el("i", { title: "rank" }, `#${rank}`));
      }) });
    byId("head-caption").textContent = `The ${SHOWN} top heads of each function, with their score and rank for every function. The chosen head is always listed.`;
  }

  // 8. Answers.
  function drawAnswers() {
    const panel = panelOf(now.one), own = panel?.answers.filter(one => one.function === now.asked) ?? [];
    const written = text => text ? el("span", { class: "said" }, text.read ?? text.text, !(text.read ?? text.text).trim() && el("span", { class: "soft" }, "(nothing)")) : "\u2013";
    const judged = text => text && [el("span", { class: text.right ? "hit" : "miss" }, text.right ? "right" : "wrong"), text.read === null && el("span", { class: "soft" }, "no JSON")];
    byId("answer-list").replaceChildren(...own.map(one => {
      const at = (kind, k) => one.texts.find(text => text.kind === kind && text.k === k), ks = distinct(one.texts.map(text => text.k)).filter(Boolean);
      const said = (kind, k, wide) => el("td", { data: { kind, k }, colspan: wide }, written(at(kind, k)), judged(at(kind, k)));
      return el("article", { class: "question", data: { item: one.id } }, el("h3", {}, one.asked), el("p", { class: "soft" }, one.question), el("p", {}, "Gold: ", el("b", { class: "gold" }, one.answer)),
        el("table", { class: "answers" }, el("thead", {}, el("tr", {}, el("th", { class: "k" }, "masked"), el("th", {}, "top heads"), el("th", {}, "random heads"))),
          el("tbody", {}, el("tr", {}, el("td", { class: "k" }, "none"), said("none", 0, 2)), ks.map(k => el("tr", {}, el("td", { class: "k" }, String(k)), said("top", k), said("random", k))))),
        el("details", {}, el("summary", { class: "soft" }, "Prompt, and the texts as written"), el("blockquote", { class: "other" }, one.prompt),
          el("dl", { class: "raw" }, one.texts.flatMap(text => [el("dt", { class: "soft" }, text.k ? `${text.kind} ${text.k}` : "all heads"), el("dd", {}, el("code", {}, text.text))]))));
    }));
    if (!own.length) byId("answer-list").append(el("p", { class: "soft" }, "No answers were kept."));
  }

  watch(picked => {
    if (picked) set("one", picked.model);
    mark(picked);
    drawHeads(picked);
    if (picked) drawAnswers();
  });
  foot(({ model, head }) => {
    const panel = panelOf(model);
    return panel ? panel.functions.map(one => `${titles[one.name]} #${rankIn(panel, one, head)}`).join(", ") : "";
  }, true);

  choices("line-controls", "model", "ranking", "seed");
  choices("verdict-controls", "score", "model", "ranking", "seed");
  choices("ranked-controls", "model", "ranking", "seed");
  choices("ranking-controls", "score", "model", "seed");
  choices("cross-controls", "k", "score", "model", "ranking", "seed");
  choices("boost-controls", "model", "ranking", "seed");
  choices("map-controls", "ranking", "seed");
  choices("head-controls", "one", "ranking", "seed");
  choices("answer-controls", "asked", "one", "ranking", "seed");
  function drawAll() { drawLines(); drawVerdicts(); drawRanked(); drawRankings(); drawCross(); drawBoost(); drawMaps(); drawMapCaption(); drawHeads(); drawAnswers(); }
  drawLegend();
  drawAll();
  follow(models);
  resized(byId("lines"), () => { drawLines(); drawMaps(); });
})();

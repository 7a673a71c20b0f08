"use strict";
/* The page of a roles study: ablation lines, head maps, shares, how sure, the fit and heads, joined by the chosen head. */
(() => {
  const { data, el, svg, byId, swatch, known, fixed, signed, span, percent, nearest, distinct, told, digitsFor, ticks, axis, headName, placeOf, ranked,
    plot, key, stroke, ramp, headMap, cellSize, folds, headTable, select, follow, foot, showTip, resized, watch } = headlab;
  const { models, tasks, roles } = data;
  const METRICS = [["F", "facilitation", "var(--c2)"], ["I", "irrelevance", "var(--c0)"], ["N", "interference", "var(--c1)"]];
  const LINES = [...METRICS, ["random", "random order", "var(--grey)"]];
  const COLOURS = { facilitating: "var(--c2)", irrelevant: "var(--c0)", interfering: "var(--c1)", mixed: "var(--c6)" };
  const SCORE = { facilitating: "F", irrelevant: "I", interfering: "N" };
  const colourOf = role => COLOURS[role] || "var(--grey)";
  const panelOf = (model, task) => data.panels.find(panel => panel.model === model && panel.task === task);

  // What a panel says of one head.
  const headOf = (panel, layer, head) => {
    const { map } = panel, at = key => map[key]?.[layer]?.[head];
    const role = roles[at("role")] || "none";
    return { role, agree: at("agree"), seeds: panel.seeds.length, score: at(SCORE[role] || "F"), F: at("F"), I: at("I"), N: at("N"), plus: at("g_plus"), minus: at("g_minus") };
  };
  const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  const agreeing = one => known(one.agree) ? `${one.agree} of ${counted(one.seeds, "seed")}` : "";
  // A fifth of the seeds is the least that can agree on one of five roles.
  const strength = one => known(one.agree) ? .1 + .9 * Math.max(0, (one.agree / one.seeds - .2) / .8) : 0;

  const now = { shown: new Set(LINES.map(([key]) => key)), map: "role", hidden: new Set(), model: models[0]?.name };

  // A row a task, a column a model.
  const grid = (host, options) => headlab.grid(host, { ...options, columns: models, rows: tasks.map(task => ({ ...task, data: { task: task.name } })), at: (task, model) => panelOf(model.name, task.name) });
  // Letters beside the lines, none over another.
  const endLabels = (chart, ends) => {
    const placed = ends.filter(({ value }) => known(value)).map(end => ({ ...end, y: Math.max(0, Math.min(chart.h, chart.py(end.value))) })).sort((a, b) => a.y - b.y);
    placed.forEach((end, i) => { if (i) end.y = Math.max(end.y, placed[i - 1].y + 11); });
    placed.reverse().forEach((end, i) => { end.y = Math.min(end.y, i ? placed[i - 1].y - 11 : chart.h); });
    chart.over.append(...placed.map(({ text, x, y, colour }) => svg("text", { class: "end halo", x: chart.px(x) + 4, y: y + 4, style: { "--c": colour } }, text)));
  };
  const sketch = (name, colour) => name === "random" ? [stroke(colour, "random")] : [stroke(colour)];

  // 1. Lines.
  function drawLegend() {
    const chips = LINES.filter(([name]) => data.panels.some(panel => panel.lines?.[name])).map(([name, text, colour]) =>
      el("button", { type: "button", class: "chip", "aria-pressed": String(now.shown.has(name)), title: "show or hide", data: { line: name }, click: () => {
        if (!now.shown.delete(name)) now.shown.add(name);
        drawLegend();
        drawLines();
        byId("line-legend").querySelector(`[data-line=${name}]`)?.focus();
      } }, svg("svg", { class: "key", width: 26, height: 12, "aria-hidden": "true" }, ...sketch(name, colour)), name.length === 1 ? `${name} ${text}` : text));
    byId("line-legend").replaceChildren(el("div", { class: "models", role: "group", "aria-label": "lines shown" }, chips),
      key([svg("rect", { class: "band", x: 0, y: 0, width: 26, height: 12, style: { "--c": "var(--grey)" } })], "95 % interval over seeds (random: over orders)"),
      el("span", { class: "soft" }, "click a line to hide it"));
  }
  const linesOf = panel => LINES.filter(([name]) => now.shown.has(name) && panel.lines?.[name]).map(([name, text, colour]) => ({ name, text, colour, ...panel.lines[name] }));
  let cut = false;
  const reach = panels => {
    // Of a row. The lines fit; a band may double the picture, and is cut where it wants more.
    const lines = panels.flatMap(linesOf), own = [0, ...lines.flatMap(line => line.mean)].filter(known);
    const low = Math.min(...own), high = Math.max(...own), more = (high - low) / 2;
    const bands = lines.flatMap(line => [...(line.low || []), ...(line.high || [])]).filter(known);
    const least = Math.min(low, ...bands), most = Math.max(high, ...bands);
    if (least < low - more || most > high + more) cut = true;
    const min = Math.max(least, low - more), max = Math.min(most, high + more), edge = (max - min) * .06 || 1;
    return axis(min - edge, max + edge);
  };
  function drawLines() {
    const longest = Math.max(1, ...data.panels.flatMap(panel => panel.ks || []));
    cut = false;
    grid(byId("line-grid"), { shape: .84, low: 230, high: 330, row: reach, facts: panel => `${panel.n_heads} heads`, tile: (panel, { width, height, first, shared }) => {
      const lines = linesOf(panel), digits = Math.max(1, digitsFor(shared.max - shared.min));
      if (!panel.ks?.length) return null;
      const last = panel.ks.length - 1;
      const chart = plot({ width, height, step: 1,
        x: { max: longest, ticks: ticks(0, longest, width < 400 ? 5 : 10), label: "heads ablated" },
        y: { ...shared, label: first ? "\u0394 log-prob of the target" : "" },
        label: `\u0394 log-prob of the target, ${panel.model} on ${panel.task}. With ${panel.ks[last]} heads ablated: ${lines.map(line => `${line.text} ${signed(line.mean[last], digits)}`).join(", ")}.`,
        move: (at, x, y) => {
          const i = nearest(panel.ks, at), k = panel.ks[i];
          showTip(x, y, [el("div", { class: "top" }, `${panel.model}: ${k} ${k === 1 ? "head" : "heads"} ablated`), ...lines.map(line => {
            const between = span(line.low?.[i], line.high?.[i], value => signed(value, digits));
            return el("div", { class: "value" }, swatch(line.colour), `${line.text} `, el("b", {}, signed(line.mean[i], digits)), between && el("span", { class: "soft" }, ` ${between}`));
          })]);
          return lines.map(line => [k, line.mean[i], line.colour]);
        } });
      for (const line of lines) {
        const style = { "--c": line.colour };
        if (line.low && line.high) chart.band(panel.ks, line.low, line.high, line.name === "random" ? "random-band" : "band", style);
      }
      for (const line of [...lines].reverse()) chart.line(panel.ks, line.mean, line.name === "random" ? "random" : "line", { "--c": line.colour });
      endLabels(chart, lines.filter(line => line.name !== "random").map(line => ({ text: line.name, x: panel.ks[last], value: line.mean[last], colour: line.colour })));
      return chart.root;
    } });
    const BASES = { plus: "with them open, the other heads at their G+ of each seed", ones: "with all heads open", raw: "with all heads at their G+ of each seed" };
    byId("line-caption").textContent = [
      told(data.panels.map(panel => `${panel.n} validation prompts, ${panel.seeds.length} ${panel.seeds.length === 1 ? "seed" : "seeds"}`), list => `n = ${list}.`),
      told(data.panels.map(panel => BASES[panel.base] || panel.base), list => `\u0394: the target's log-prob, summed over its tokens, with these heads closed less that ${list}.`),
      told(data.panels.map(panel => panel.reference), list => `In place of a closed head: ${list}.`),
      models.length > 1 && "All panels of a task share an axis; tasks do not.",
      cut && "Bands wider than the picture are cut.",
    ].filter(Boolean).join(" ");
  }

  // 2. Head maps, a fold for each model; drawn when first opened.
  function drawMapControls() {
    byId("map-controls").replaceChildren(select("colour", [["role", "role"], ...METRICS.map(([name, text]) => [name, `${name}, ${text}`])], now.map, value => { now.map = value; drawMapLegend(); drawMaps(); }));
    byId("map-controls").querySelector("select").id = "map-of";
  }
  function drawMapLegend() {
    const legend = byId("map-legend"), groups = byId("map-groups");
    roles.forEach((role, i) => groups.classList.toggle(`hide-${i}`, now.map === "role" && now.hidden.has(i)));
    if (now.map !== "role") {
      const [name, text, colour] = METRICS.find(([metric]) => metric === now.map);
      legend.replaceChildren(ramp(colour, "0", "1"), el("span", {}, `${name}, ${text}: mean over seeds`));
      return;
    }
    legend.replaceChildren(el("div", { class: "models", role: "group", "aria-label": "roles shown" }, roles.map((role, i) =>
      el("button", { type: "button", class: "chip", "aria-pressed": String(!now.hidden.has(i)), title: "show or hide", data: { role }, click: event => {
        if (!now.hidden.delete(i)) now.hidden.add(i);
        event.currentTarget.setAttribute("aria-pressed", String(!now.hidden.has(i)));
        groups.classList.toggle(`hide-${i}`, now.hidden.has(i));
      } }, swatch(colourOf(role)), role))), ramp("var(--grey)", "few seeds agree", "all"));
  }
  const tipOf = (panel, layer, head) => {
    const one = headOf(panel, layer, head);
    return [el("div", { class: "top" }, headName(layer, head)),
      el("div", {}, swatch(colourOf(one.role)), one.role === "none" ? "no role" : one.role, known(one.agree) && `, ${agreeing(one)}`),
      el("div", {}, METRICS.map(([name]) => `${name} ${fixed(one[name])}`).join(", ")),
      el("div", { class: "soft" }, `G+ ${fixed(one.plus)}, G\u2212 ${fixed(one.minus)}`)];
  };
  // The heads with a role that matters, the surest first.
  const matters = one => one.role === "facilitating" || one.role === "interfering";
  const surest = (a, b) => b.sure - a.sure || (b.score ?? 0) - (a.score ?? 0) || a.index - b.index;
  const LEAST = 340;
  const drawMaps = folds(models, (model, keep) => {
    const panels = tasks.map(task => panelOf(model.name, task.name)), cell = cellSize(model, panels.filter(panel => panel?.map).length || 1, 11, LEAST);
    return tasks.map((task, i) => {
      const panel = panels[i];
      if (!panel?.map) return el("figure", {}, el("figcaption", {}, task.name), el("p", { class: "none" }, "Not measured."));
      const byRole = now.map === "role", metric = METRICS.find(([name]) => name === now.map), score = panel.map[byRole ? "F" : now.map];
      const ranks = ranked(score);
      const all = ranks.order.map(({ layer, head, name, value }) => ({ ...headOf(panel, layer, head), name, value, index: layer * model.heads + head }));
      const tops = byRole ? all.filter(matters).map(one => ({ ...one, sure: one.agree / one.seeds })).sort(surest) : all;
      const map = headMap({ model: model.name, task: task.name, score, cell, ranks, tip: (layer, head) => tipOf(panel, layer, head),
        tops: tops.slice(0, 5).map(one => ({ name: one.name, value: one.value ?? 0 })),
        scale: el("span", {}, tops.length ? byRole ? "surest:" : "highest:" : "no head facilitates or interferes"),
        paint: (layer, head) => {
          const one = headOf(panel, layer, head);
          return { name: byRole ? `r${Math.max(0, roles.indexOf(one.role))}` : "plain", colour: byRole ? colourOf(one.role) : metric[2], strength: byRole ? strength(one) : Math.max(0, Math.min(1, one[now.map] ?? 0)),
            says: [one.role === "none" ? "no role" : one.role, agreeing(one), ...METRICS.map(([name]) => `${name} ${fixed(one[name])}`)].filter(Boolean).join(", ") };
        } });
      keep(map);
      return el("figure", { style: { width: `${Math.max(map.width, LEAST)}px` } }, el("figcaption", {}, task.name), el("div", { class: "wide" }, map.root), map.under);
    });
  });

  // 3. Shares: a column a role, of each the mean, in every seed, in any seed. Published ones below their task.
  function drawShares() {
    const kinds = [["mean", "mean"], ["always", "every"], ["any", "any"]];
    const cells = (shares, soft) => roles.flatMap(role => kinds.map(([kind]) => el("td", { class: `n${kind === "mean" ? " main edge" : ""}${soft ? " soft" : ""}`, data: { role, kind } }, soft && !known(shares?.[kind]?.[role]) ? "" : percent(soft ? shares[kind]?.[role] : shares?.[role]?.[kind]))));
    // A mixed head counts as facilitating and as interfering; in the bar it stands once.
    const alone = (shares, role) => (shares[role]?.mean || 0) - (["facilitating", "interfering"].includes(role) ? shares.mixed?.mean || 0 : 0);
    const bar = shares => el("td", {}, el("span", { class: "stack", role: "img", "aria-label": roles.map(role => `${role} ${percent(shares[role]?.mean)} %`).join(", ") },
      roles.map(role => el("i", { style: { width: `${100 * alone(shares, role)}%`, background: colourOf(role) } }))));
    const body = tasks.map(task => {
      const panels = models.map(model => panelOf(model.name, task.name)), published = new Map();
      panels.forEach(panel => (panel?.published || []).forEach(one => published.set(one.name, one)));
      return el("tbody", { data: { task: task.name } },
        el("tr", { class: "first" }, el("th", { scope: "rowgroup", colspan: 2 + 3 * roles.length }, el("span", {}, task.name))),
        models.map((model, i) => el("tr", { data: { model: model.name } }, el("td", { class: "name" }, model.name),
          panels[i]?.shares ? [bar(panels[i].shares), ...cells(panels[i].shares)] : el("td", { class: "soft", colspan: 1 + 3 * roles.length }, "not measured"))),
        [...published.values()].map(one => el("tr", { class: "published", data: { published: one.name } }, el("td", { class: "name soft" }, one.name), el("td", { class: "soft" }, "published"), cells(one, true))));
    });
    byId("share-table").replaceChildren(el("div", { class: "scroll" }, el("table", { class: "shares" },
      el("thead", {}, el("tr", {}, el("th", { rowspan: 2 }, "model"), el("th", { rowspan: 2 }, "roles"), roles.map(role => el("th", { colspan: 3, class: "edge", scope: "colgroup" }, swatch(colourOf(role)), ` ${role}`))),
        el("tr", {}, roles.flatMap(() => kinds.map(([kind, text]) => el("th", { class: kind === "mean" ? "n edge" : "n" }, text))))), body)));
    byId("share-caption").textContent = "Percent of heads. mean: over seeds; every: the heads that have the role in every seed; any: in at least one." +
      " A mixed head counts as facilitating and as interfering, too." +
      (data.panels.some(panel => panel.published?.length) ? " published: the numbers of the paper." : "") +
      distinct(data.panels.filter(panel => panel.published_mean).map(panel => panel.task)).map(task => {
        const { facilitating, irrelevant } = data.panels.find(panel => panel.task === task && panel.published_mean).published_mean;
        return ` Over its models and seeds, on ${task}: ${percent(facilitating)} facilitating, ${percent(irrelevant)} irrelevant.`;
      }).join("");
  }

  // 4. How sure: accuracy against chance, and the scores' distribution.
  function drawAccuracy() {
    const W = byId("sure").clientWidth < 500 ? 130 : 240, at = value => 6 + (W - 12) * Math.max(0, Math.min(1, value));
    const body = tasks.map(task => el("tbody", {}, el("tr", { class: "first" }, el("th", { scope: "rowgroup", colspan: 5 }, el("span", {}, task.name))), models.map(model => {
      const panel = panelOf(model.name, task.name), one = panel?.accuracy;
      const row = (...inside) => el("tr", { data: { model: model.name, task: task.name } }, el("td", { class: "name" }, model.name), inside);
      if (!known(one?.value)) return row(el("td", { class: "soft", colspan: 4 }, panel ? "no accuracy for this task" : "not measured"));
      const between = span(one.low, one.high, value => percent(value, 0)), better = known(one.chance) && known(one.low) ? one.low > one.chance : null;
      return row(el("td", {}, svg("svg", { class: "range", width: W, height: 20, role: "img", style: { "--c": better === false ? "var(--warn)" : "var(--accent)" },
        "aria-label": `accuracy ${percent(one.value, 0)} %${between ? `, 95 % interval ${between}` : ""}${known(one.chance) ? `, chance ${percent(one.chance, 0)} %` : ""}` },
      svg("line", { class: "ground", x1: at(0), x2: at(1), y1: 10, y2: 10 }),
      known(one.low) && known(one.high) && svg("line", { class: "between", x1: at(one.low), x2: at(one.high), y1: 10, y2: 10 }),
      known(one.chance) && svg("line", { class: "chance", x1: at(one.chance), x2: at(one.chance), y1: 2, y2: 18 }),
      svg("circle", { cx: at(one.value), cy: 10, r: 4.5 }))),
      el("td", { class: "n" }, el("b", {}, `${percent(one.value, 0)} %`), between && el("span", { class: "soft" }, between)),
      el("td", { class: "n" }, known(one.chance) ? `${percent(one.chance, 0)} %` : "\u2013", better === false && el("span", { class: "soft" }, "not above")),
      el("td", { class: "n" }, known(one.n) ? String(one.n) : "\u2013"));
    })));
    byId("accuracy-table").replaceChildren(el("div", { class: "scroll" }, el("table", { class: "shares right" },
      el("thead", {}, el("tr", {}, el("th", {}, "model"), el("th", {}, el("span", { class: "ends", style: { width: `${W}px` } }, el("span", {}, "0"), el("span", {}, "100 %"))),
        el("th", { class: "n" }, "right"), el("th", { class: "n" }, "chance"), el("th", { class: "n" }, "prompts"))), body)));
  }
  function drawScores() {
    byId("ecdf-legend").replaceChildren(...METRICS.map(([name, text, colour]) => key([stroke(colour)], `${name} ${text}`)));
    grid(byId("ecdf-grid"), { shape: .6, low: 170, high: 250, row: () => ({ min: 0, max: 1, ticks: [0, .25, .5, .75, 1], digits: 2 }), tile: (panel, { width, height, first, shared }) => {
      const { ecdf } = panel;
      if (!ecdf?.x?.length) return null;
      const lines = METRICS.filter(([name]) => ecdf[name]);
      const half = nearest(ecdf.x, .5);
      const chart = plot({ width, height, step: .01, x: { max: 1, ticks: [0, .25, .5, .75, 1], label: "score" }, y: { ...shared, label: first ? "share of heads" : "" },
        label: `Distribution of the scores, ${panel.model} on ${panel.task}. Up to 0.5: ${lines.map(([name, text]) => `${text} ${percent(ecdf[name][half])} %`).join(", ")}.`,
        move: (at, x, y) => {
          const i = nearest(ecdf.x, at);
          showTip(x, y, [el("div", { class: "top" }, `${panel.model}: score up to ${fixed(ecdf.x[i])}`), ...lines.map(([name, text, colour]) => el("div", {}, swatch(colour), `${text} `, el("b", {}, `${percent(ecdf[name][i])} %`)))]);
          return lines.map(([name, , colour]) => [ecdf.x[i], ecdf[name][i], colour]);
        } });
      chart.inner.append(svg("line", { class: "threshold", x1: chart.px(.5), x2: chart.px(.5), y1: 0, y2: chart.h }));
      lines.forEach(([name, , colour]) => chart.line(ecdf.x, ecdf[name], "line", { "--c": colour }));
      endLabels(chart, lines.map(([name, , colour]) => ({ text: name, x: .5, value: ecdf[name][half], colour })));
      return chart.root;
    } });
  }

  // 5. The fit: without a preference, then from there towards open (G+) and closed (G−) gates.
  const FITS = [["free", "no preference", "var(--grey)"], ["plus", "G+, towards open gates", "var(--c5)"], ["minus", "G\u2212, towards closed gates", "var(--c3)"]];
  function drawFit() {
    const seeds = told(data.panels.map(panel => counted(panel.seeds.length, "seed")), list => list);
    byId("fit-caption").textContent = [`Gates are fitted once without a preference; from there once towards open gates (G+) and once towards closed ones (G\u2212).`,
      seeds && `${seeds}.`, data.panels.length && data.panels.length < 13 && `Training prompts: ${distinct(data.panels.map(panel => `${panel.task} ${panel.n_train}`)).join(", ")}.`].filter(Boolean).join(" ");
    byId("loss-legend").replaceChildren(...FITS.map(([, text, colour]) => key([stroke(colour)], text)), el("span", { class: "soft" }, "mean over seeds"));
    const partsOf = ({ loss }) => {
      const end = loss?.free?.length ? (loss.free.length - 1) * loss.every : 0;
      return FITS.filter(([name]) => loss?.[name]?.length).map(([name, text, colour]) => ({ text: text.split(",")[0], colour, ys: loss[name], xs: loss[name].map((_, i) => (name === "free" ? 0 : end) + i * loss.every) }));
    };
    const longest = Math.max(1, ...data.panels.flatMap(panel => partsOf(panel).flatMap(part => part.xs)));
    const row = panels => {
      const values = panels.flatMap(panel => partsOf(panel).flatMap(part => part.ys)).filter(known);
      const min = values.length ? Math.min(...values) : 0, max = values.length ? Math.max(...values) : 1, edge = (max - min) * .06 || 1;
      return axis(min - edge, max + edge);
    };
    grid(byId("loss-grid"), { shape: .6, low: 170, high: 250, row, tile: (panel, { width, height, first, shared }) => {
      const parts = partsOf(panel), digits = Math.max(2, digitsFor(shared.max - shared.min));
      if (!parts.length) return null;
      const chart = plot({ width, height, step: panel.loss.every, x: { max: longest, ticks: ticks(0, longest, 4), label: "updates" }, y: { ...shared, label: first ? "loss" : "" },
        label: `Loss of the fits, ${panel.model} on ${panel.task}. At the end: ${parts.map(part => `${part.text} ${fixed(part.ys[part.ys.length - 1], digits)}`).join(", ")}.`,
        move: (at, x, y) => {
          const here = parts.filter(part => at >= part.xs[0] - panel.loss.every / 2 && at <= part.xs[part.xs.length - 1] + panel.loss.every / 2).map(part => ({ ...part, i: nearest(part.xs, at) }));
          showTip(x, y, [el("div", { class: "top" }, `${panel.model}: ${here.length ? `update ${here[0].xs[here[0].i]}` : "no update"}`), ...here.map(part => el("div", {}, swatch(part.colour), `${part.text} `, el("b", {}, fixed(part.ys[part.i], digits))))]);
          return here.map(part => [part.xs[part.i], part.ys[part.i], part.colour]);
        } });
      parts.forEach(part => chart.line(part.xs, part.ys, "line thin", { "--c": part.colour }));
      return chart.root;
    } });
  }

  // 6. Heads.
  const SHOWN = 20;
  function drawHeads(picked = headlab.picked) {
    const model = models.find(one => one.name === now.model), panels = tasks.map(task => panelOf(now.model, task.name)).filter(panel => panel?.map);
    byId("head-controls").replaceChildren(...(models.length > 1 ? [select("model", models.map(({ name }) => [name, name]), now.model, value => { now.model = value; drawHeads(); })] : []));
    const own = picked?.model === now.model ? picked.head : null;
    if (!panels.length) { byId("head-table").replaceChildren(el("p", {}, "No roles for this model.")); byId("head-caption").textContent = ""; return; }
    const found = [];
    for (let layer = 0; layer < model.layers; layer++) for (let head = 0; head < model.heads; head++) {
      const best = panels.map(panel => headOf(panel, layer, head)).filter(one => matters(one) && one.agree > one.seeds / 2)
        .map(one => ({ ...one, name: headName(layer, head), sure: one.agree / one.seeds, index: layer * model.heads + head })).sort(surest)[0];
      if (best) found.push(best);
    }
    const names = found.sort(surest).slice(0, SHOWN).map(one => one.name), listed = names.length;
    if (own && !names.includes(own)) names.push(own);
    byId("head-caption").textContent = (found.length > listed ? `The ${listed} surest of ${found.length} heads that facilitate or interfere in most seeds in at least one task, ` : found.length
      ? `All ${found.length} heads that facilitate or interfere in most seeds in at least one task, ` : "No head facilitates or interferes in most seeds in any task. ") + (found.length ? "by agreement, then score. The chosen head is always listed. Scores are means over seeds." : "");
    headTable({ model: now.model, own, titles: panels.map(panel => `${panel.task}, seeds that agree`), groups: [{ names }], cells: name =>
      panels.map(panel => {
        const one = headOf(panel, ...placeOf(name));
        return el("td", { class: "score role", style: { background: `color-mix(in srgb, ${colourOf(one.role)} ${(one.role === "none" ? 8 : 32) * strength(one)}%, var(--paper))` } },
          el("b", {}, one.role === "none" ? "no role" : one.role), el("i", { title: "seeds that agree" }, known(one.agree) ? `${one.agree}/${one.seeds}` : "\u2013"),
          el("span", { class: "soft" }, METRICS.map(([metric]) => `${metric} ${fixed(one[metric])}`).join("  ")));
      }) });
  }

  watch(picked => {
    if (picked) now.model = picked.model;
    drawHeads(picked);
  });
  foot(({ model, head }) => tasks.map(task => [task.name, panelOf(model, task.name)]).filter(([, panel]) => panel?.map)
    .map(([task, panel]) => { const one = headOf(panel, ...placeOf(head)); return `${task} ${one.role === "none" ? "no role" : one.role}${known(one.agree) ? ` ${one.agree}/${one.seeds}` : ""}`; }).join(", "), true);

  drawLegend(); drawLines(); drawMapControls(); drawMapLegend(); drawMaps(); drawShares(); drawAccuracy(); drawScores(); drawFit(); drawHeads();
  follow(models);
  resized(byId("lines"), () => { drawLines(); drawAccuracy(); drawScores(); drawFit(); drawMaps(); });
})();

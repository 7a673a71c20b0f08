"use strict";
/* The page of a contrastive study: kept and forgotten, numbers, head maps, heads and the fit, joined by the chosen head. */
(() => {
  const { data, el, svg, byId, swatch, known, fixed, span, percent, nearest, distinct, told, digitsFor, ticks, axis, headName, placeOf, ranked,
    plot, key, stroke, ramp, headMap, cellSize, folds, headTable, select, follow, foot, showTip, resized, watch } = headlab;
  const { models, tasks, kept, formats } = data;
  const BLUE = "var(--c0)", ORANGE = "var(--c1)", GREY = "var(--grey)";
  const other = format => Object.keys(formats).find(one => one !== format);
  // What is asked with a format kept: that one, to the left of the task's place, and the other, to its right.
  const sides = format => [{ asked: format, word: "kept", colour: BLUE, way: -1 }, { asked: other(format), word: "forgotten", colour: ORANGE, way: 1 }];
  const panelsOf = (model, format) => data.panels.filter(panel => panel.model === model && panel.kept === format);
  const panelOf = (model, format, task) => panelsOf(model, format).find(panel => panel.task === task);
  const share = value => known(value) ? `${percent(value, 0)} %` : "\u2013";
  const between = ([, low, high]) => span(low, high, value => percent(value, 0));
  const counted = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

  const now = { map: "closed", model: models[0]?.name };

  // A row a format kept, a column a model; a tile has the panels of all tasks.
  const grid = (host, options) => headlab.grid(host, { ...options, columns: models, least: 340,
    rows: kept.map(format => ({ name: `kept: ${formats[format]}`, says: `forgotten: ${formats[other(format)]}`, format, data: { kept: format } })),
    at: ({ format }, model) => { const panels = panelsOf(model.name, format); return panels.length ? panels : null; } });

  // 1. Kept and forgotten: before and after, a place a task.
  const ring = (x, y) => svg("circle", { class: "before", cx: x, cy: y, r: 5 });
  const disc = (x, y) => svg("circle", { class: "after", cx: x, cy: y, r: 3.6 });
  const seed = (x, y) => svg("circle", { class: "seed", cx: x, cy: y, r: 1.6 });
  const bar = (x, low, high) => svg("line", { class: "sure", x1: x, x2: x, y1: low, y2: high });
  const cross = (x, y) => svg("path", { class: "shuffled", d: `M${x - 3} ${y - 3}l6 6m0-6l-6 6`, data: { x, y } });
  const diamond = (x, y) => svg("path", { class: "published", d: `M${x} ${y - 7.5}l7.5 7.5-7.5 7.5-7.5-7.5z`, data: { x, y } });
  const marks = (colour, attributes, ...inside) => svg("g", { class: "pair", style: { "--c": colour }, ...attributes }, ...inside);
  function drawLegend() {
    const sketch = (colour, ...inside) => [marks(colour, {}, ...inside)];
    byId("pair-legend").replaceChildren(...[
      el("span", { class: "key" }, swatch(BLUE), "kept"),
      el("span", { class: "key" }, swatch(ORANGE), "forgotten"),
      key(sketch(GREY, ring(13, 6)), "before"),
      key(sketch(GREY, disc(13, 6)), "after, with gates"),
      key(sketch(GREY, svg("line", { class: "sure", x1: 0, x2: 26, y1: 6, y2: 6 })), "95 % interval"),
      key(sketch(GREY, seed(5, 8), seed(13, 4), seed(21, 7)), "seeds"),
      key(sketch(GREY, cross(13, 6)), "shuffled gates"),
      data.panels.some(panel => panel.published) && key(sketch(GREY, svg("path", { class: "published", d: "M13 .5l5.5 5.5-5.5 5.5-5.5-5.5z" })), "published, after"),
    ].filter(Boolean));
  }
  const ahead = panel => panel.separates ? "the forgotten fell more" : "the forgotten did not fall more";
  const tipOf = (panel, task, format, model) => panel ? [
    el("div", { class: "top" }, `${panel.model}: ${panel.task}`), el("div", { class: "soft" }, task.says),
    ...sides(format).flatMap(({ asked, word, colour }) => {
      const right = panel.accuracy[asked], sure = panel.log_prob[asked], paper = panel.published?.[asked];
      return [el("div", { class: "top" }, swatch(colour), `${word}: ${formats[asked]}`),
        el("div", {}, "before ", el("b", {}, share(right.before[0])), ", after ", el("b", {}, share(right.gates[0])), between(right.gates) && el("span", { class: "soft" }, ` ${between(right.gates)}`)),
        el("div", {}, `heads closed ${share(right.closed[0])}, shuffled ${share(right.shuffled[0])}`),
        el("div", { class: "soft" }, `seeds: ${right.seeds.map(value => percent(value, 0)).join(", ")}`),
        el("div", { class: "soft" }, `log-prob ${fixed(sure.before)} before, ${fixed(sure.gates)} after`),
        paper && el("div", { class: "soft" }, `published: ${share(paper[0])} before, ${share(paper[1])} after`)].filter(Boolean);
    }), el("div", { class: "soft" }, `n = ${counted(panel.n, "pair")}; ${share(panel.closed)} of heads closed; ${ahead(panel)}`)]
    : [el("div", { class: "top" }, `${model}: ${task.name}`), el("div", {}, "Not measured.")];
  const LETTER = 6; // pixels of one in the axis
  const short = name => name.length > 18 ? `${name.slice(0, 17)}\u2026` : name;
  const room = { min: -.6, max: tasks.length - .4 };
  const place = value => Math.max(0, Math.min(tasks.length - 1, Math.round(value)));
  function drawPairs() {
    const longest = LETTER * Math.max(0, ...tasks.map(task => short(task.name).length));
    grid(byId("pair-grid"), { shape: .62, low: 280, high: 360, row: () => ({ min: -4, max: 104, ticks: [0, 25, 50, 75, 100], digits: 0 }),
      facts: panels => told(panels.map(panel => counted(panel.seeds.length, "seed")), list => list),
      tile: (panels, { row: { format }, column, width, height, first, shared }) => {
        const slant = longest > (width - 70) / (room.max - room.min) - 6;
        const chart = plot({ width, height, step: 1, bottom: slant ? 18 + Math.round(.72 * longest) : 28, x: { ...room, ticks: [], snap: place, label: "" }, y: { ...shared, label: first ? "right, %" : "" },
          label: `Percent right before and after, ${column.name}, kept: ${formats[format]}. ${tasks.map(task => {
            const panel = panels.find(one => one.task === task.name);
            return `${task.name}: ${panel ? sides(format).map(({ asked, word }) => `${word} ${share(panel.accuracy[asked].before[0])} before, ${share(panel.accuracy[asked].gates[0])} after`).join("; ") : "not measured"}.`;
          }).join(" ")}`,
          move: (at, x, y) => {
            const task = tasks[place(at)];
            showTip(x, y, tipOf(panels.find(one => one.task === task.name), task, format, column.name));
            return [];
          } });
        const { h, px, py, inner, over } = chart, unit = px(1) - px(0), apart = Math.min(18, .22 * unit);
        tasks.forEach((task, i) => {
          const x = px(i), panel = panels.find(one => one.task === task.name);
          if (i) inner.append(svg("line", { class: "grid", x1: x - unit / 2, x2: x - unit / 2, y1: 0, y2: h }));
          over.append(svg("text", slant ? { transform: `translate(${x + 4},${h + 13}) rotate(-45)`, "text-anchor": "end" } : { x, y: h + 18, "text-anchor": "middle" }, short(task.name), svg("title", {}, task.name)));
          if (!panel) over.append(svg("text", { class: "missing", transform: `translate(${x + 4},${h / 2}) rotate(-90)`, "text-anchor": "middle", data: { task: task.name } }, "Not measured"));
          else sides(format).forEach(side => over.append(dumbbell(panel, side, x + side.way * apart, apart, value => py(100 * value))));
        });
        return chart.root;
      } });
    byId("pair-caption").textContent = [
      told(data.panels.map(panel => counted(panel.n, "pair")), list => `n = ${list} of the task left out, asked in both formats.`),
      "Right: every token of the answer is the most likely one.",
      "Dots: seeds; bar: 95 % interval over pairs of the mean over seeds. Shuffled: the same gates on other heads, a baseline.",
      data.panels.some(panel => panel.published) && "Diamonds: what the paper reports for this model and task, with gates.",
    ].filter(Boolean).join(" ");
  }
  function dumbbell(panel, { asked, colour, way }, x, apart, y) {
    const { before, gates, shuffled, seeds } = panel.accuracy[asked], paper = panel.published?.[asked]?.[1];
    return marks(colour, { data: { task: panel.task, asked } },
      known(gates[1]) && known(gates[2]) && bar(x, y(gates[1]), y(gates[2])),
      known(before[0]) && known(gates[0]) && svg("line", { class: "move", x1: x, x2: x, y1: y(before[0]), y2: y(gates[0]) }),
      ...seeds.filter(known).map(value => seed(x + way * 8.5, y(value))),
      known(shuffled[0]) && cross(x - way * Math.min(9, apart / 2), y(shuffled[0])),
      known(before[0]) && ring(x, y(before[0])), known(gates[0]) && disc(x, y(gates[0])),
      known(paper) && diamond(x, y(paper)));
  }

  // 2. Numbers.
  function drawNumbers() {
    const right = ["before", "gates", "closed", "shuffled"], sure = ["before", "gates"], wide = 3 + right.length + sure.length;
    const cell = (name, main, ...inside) => el("td", { class: main ? "n main" : "n", data: { of: name } }, inside);
    const rows = (model, format, task) => {
      const panel = panelOf(model, format, task);
      if (!panel) return [el("tr", { data: { task } }, el("td", { class: "name" }, task), el("td", { class: "soft", colspan: wide - 1 }, "Not measured"))];
      return sides(format).map(({ asked, word, colour }, i) => el("tr", { class: i === 0 && "upper", data: { task, asked } },
        el("td", { class: i ? "name soft" : "name" }, task, i === 0 && el("span", { class: "soft" }, ahead(panel))),
        el("td", { class: "format" }, swatch(colour), ` ${word}`, el("span", { class: "soft" }, formats[asked])), cell("n", false, String(panel.n)),
        right.map(variant => cell(variant, variant === "gates", share(panel.accuracy[asked][variant][0]), el("span", { class: "soft" }, between(panel.accuracy[asked][variant])),
          sure.includes(variant) && panel.published && el("span", { class: "soft" }, `paper ${share(panel.published[asked][sure.indexOf(variant)])}`))),
        sure.map(variant => cell(`log-prob ${variant}`, false, fixed(panel.log_prob[asked][variant])))));
    };
    byId("number-table").replaceChildren(el("div", { class: "scroll" }, el("table", { class: "shares pairs" },
      el("thead", {}, el("tr", {}, el("th", { rowspan: 2 }, "left out"), el("th", { rowspan: 2 }, "asked"), el("th", { rowspan: 2, class: "n" }, "n"),
        el("th", { colspan: 4, class: "edge", scope: "colgroup" }, "right"), el("th", { colspan: 2, class: "edge", scope: "colgroup" }, "log-prob")),
      el("tr", {}, ["before", "after", "heads closed", "shuffled", "before", "after"].map(text => el("th", { class: "n" }, text)))),
      models.flatMap(model => kept.map(format => el("tbody", { data: { model: model.name, kept: format } },
        el("tr", {}, el("th", { scope: "rowgroup", colspan: wide }, el("span", {}, `${model.name}, kept: ${formats[format]}`))), tasks.flatMap(task => rows(model.name, format, task.name))))))));
  }

  // 3. Head maps.
  const mapOf = (model, format) => data.maps.find(map => map.model === model && map.kept === format && map.gate);
  const headOf = (map, layer, head) => ({ gate: map.gate[layer][head], closed: map.closed[layer][head], fits: map.fits });
  const closedIn = one => `closed in ${known(one.closed) ? Math.round(one.closed * one.fits) : "\u2013"} of ${counted(one.fits, "fit")}`;
  const COLOURS = { closed: ["share of fits that close the head", "var(--c6)"], gate: ["mean gate", "var(--c2)"] };
  // Of a map, the most often closed first.
  const mostClosed = map => ranked(map.closed).order.map(one => ({ ...one, ...headOf(map, one.layer, one.head) }))
    .sort((a, b) => (b.closed ?? -1) - (a.closed ?? -1) || (a.gate ?? 2) - (b.gate ?? 2) || a.layer - b.layer || a.head - b.head);
  const LEAST = 340;
  const drawMaps = folds(models, (model, keep) => {
    const own = kept.map(format => mapOf(model.name, format)), cell = cellSize(model, own.filter(Boolean).length || 1, 11, LEAST);
    return kept.map((format, i) => {
      const title = `kept: ${formats[format]}`, map = own[i];
      if (!map) return el("figure", { data: { kept: format } }, el("figcaption", {}, title), el("p", { class: "none" }, "Not measured."));
      const tops = mostClosed(map).filter(one => one.closed > 0).slice(0, 5);
      const drawn = headMap({ model: model.name, task: format, of: `with ${formats[format]} kept`, score: map[now.map], cell, ranks: ranked(map[now.map]),
        tops: tops.map(one => ({ name: one.name, value: one.closed })), scale: el("span", {}, tops.length ? "most often closed:" : "no head is closed"),
        tip: (layer, head) => [el("div", { class: "top" }, headName(layer, head)), ...kept.filter(one => mapOf(model.name, one)).flatMap(one => {
          const found = headOf(mapOf(model.name, one), layer, head);
          return [el("div", { class: "soft" }, `kept: ${formats[one]}`), el("div", {}, `${closedIn(found)}, gate ${fixed(found.gate)}`)];
        })],
        paint: (layer, head) => {
          const one = headOf(map, layer, head);
          return { name: "plain", colour: COLOURS[now.map][1], strength: Math.max(0, Math.min(1, one[now.map] ?? 0)), says: `${closedIn(one)}, gate ${fixed(one.gate)}` };
        } });
      keep(drawn);
      return el("figure", { style: { width: `${Math.max(drawn.width, LEAST)}px` } }, el("figcaption", {}, title, el("span", { class: "soft" }, counted(map.fits, "fit"))), el("div", { class: "wide" }, drawn.root), drawn.under);
    });
  });
  function drawMapControls() {
    byId("map-controls").replaceChildren(select("colour", Object.entries(COLOURS).map(([name, [text]]) => [name, text]), now.map, value => { now.map = value; drawMapLegend(); drawMaps(); }));
    byId("map-controls").querySelector("select").id = "map-of";
  }
  function drawMapLegend() {
    const [text, colour] = COLOURS[now.map];
    byId("map-legend").replaceChildren(now.map === "gate" ? ramp(colour, "0, closed", "1, open") : ramp(colour, "in no fit", "in all"), el("span", {}, text));
  }

  // 4. Heads: for each format kept those most often closed, beside how often they are with the other kept.
  const SHOWN = 10;
  function drawHeads(picked = headlab.picked) {
    const own = picked?.model === now.model ? picked.head : null, found = kept.map(format => ({ format, map: mapOf(now.model, format) })).filter(({ map }) => map);
    byId("head-controls").replaceChildren(...(models.length > 1 ? [select("model", models.map(({ name }) => [name, name]), now.model, value => { now.model = value; drawHeads(); })] : []));
    byId("head-caption").textContent = "";
    if (!found.length) { byId("head-table").replaceChildren(el("p", {}, "No gates for this model.")); return; }
    headTable({ model: now.model, own, titles: found.map(({ format }) => `kept: ${formats[format]}`),
      groups: found.map(({ format, map }) => {
        const names = mostClosed(map).filter(one => one.closed > 0).slice(0, SHOWN).map(one => one.name);
        if (own && !names.includes(own)) names.push(own);
        return { title: `Most often closed, kept: ${formats[format]}`, names, none: "No fit closes a head." };
      }),
      cells: name => found.map(({ format, map }) => {
        const one = headOf(map, ...placeOf(name));
        return el("td", { class: "score", data: { kept: format }, style: { background: `color-mix(in srgb, ${COLOURS.closed[1]} ${(32 * (one.closed ?? 0)).toFixed(1)}%, var(--paper))` } },
          el("b", {}, share(one.closed)), el("i", { title: "mean gate" }, `gate ${fixed(one.gate)}`));
      }) });
    const mostly = found.map(({ map }) => new Set(mostClosed(map).filter(one => one.closed > .5).map(one => one.name)));
    byId("head-caption").textContent = [
      `The share of fits that close a head, and its mean gate; at most ${SHOWN} heads each. The chosen head is always listed.`,
      `Closed in more than half of the fits: ${found.map(({ format }, i) => `${counted(mostly[i].size, "head")} where ${formats[format]} is kept`).join(", ")}${mostly.length > 1 ? `, ${[...mostly[0]].filter(name => mostly[1].has(name)).length} of them in both` : ""}.`,
    ].join(" ");
  }

  // 5. The fit.
  const hue = task => `var(--c${2 + tasks.findIndex(one => one.name === task) % 8})`; // blue and orange are taken
  function drawFit() {
    const pairs = data.panels.map(panel => panel.n_train), ends = distinct([Math.min(...pairs), Math.max(...pairs)]).join(" to ");
    byId("fit-caption").textContent = ["Loss: \u2212log p(kept), plus log p(forgotten) \u2212 log p(kept) but no less than \u22125, less \u03bb times the mean clipped logit of the gates.",
      told(data.panels.map(panel => counted(panel.seeds.length, "seed")), list => `Mean over ${list}.`),
      pairs.length > 0 && `Fitted on ${ends} pairs of the other tasks.`].filter(Boolean).join(" ");
    byId("loss-legend").replaceChildren(el("span", { class: "soft" }, "left out:"), ...tasks.map(({ name }) => key([stroke(hue(name))], name)));
    const lineOf = ({ task, loss }) => ({ task, colour: hue(task), every: loss.every, ys: loss.mean, xs: loss.mean.map((_, i) => i * loss.every) });
    const having = panels => panels.filter(panel => panel.loss?.mean?.length).map(lineOf);
    const longest = Math.max(1, ...having(data.panels).flatMap(line => line.xs));
    const row = shown => {
      const values = having(shown.flat()).flatMap(line => line.ys).filter(known);
      const min = values.length ? Math.min(...values) : 0, max = values.length ? Math.max(...values) : 1, edge = (max - min) * .06 || 1;
      return axis(min - edge, max + edge);
    };
    grid(byId("loss-grid"), { shape: .5, low: 190, high: 270, row, tile: (panels, { row: { format }, column, width, height, first, shared }) => {
      const lines = having(panels), digits = Math.max(2, digitsFor(shared.max - shared.min));
      if (!lines.length) return null;
      const chart = plot({ width, height, step: lines[0].every, x: { max: longest, ticks: ticks(0, longest, 5).filter(Number.isInteger), label: "updates" }, y: { ...shared, label: first ? "loss" : "" },
        label: `Loss of the fits, ${column.name}, kept: ${formats[format]}. At the end: ${lines.map(line => `without ${line.task} ${fixed(line.ys[line.ys.length - 1], digits)}`).join(", ")}.`,
        move: (at, x, y) => {
          const here = lines.map(line => ({ ...line, i: nearest(line.xs, at) }));
          showTip(x, y, [el("div", { class: "top" }, `${column.name}: update ${here[0].xs[here[0].i]}`), ...here.map(line => el("div", {}, swatch(line.colour), `without ${line.task} `, el("b", {}, fixed(line.ys[line.i], digits))))]);
          return here.map(line => [line.xs[line.i], line.ys[line.i], line.colour]);
        } });
      for (const line of lines) {
        chart.line(line.xs, line.ys, "line thin", { "--c": line.colour });
        if (line.xs.length === 1 && known(line.ys[0])) chart.over.append(svg("circle", { class: "dot", cx: chart.px(0), cy: chart.py(line.ys[0]), r: 3.5, style: { "--c": line.colour } }));
      }
      return chart.root;
    } });
  }

  watch(picked => {
    if (picked) now.model = picked.model;
    drawHeads(picked);
  });
  foot(({ model, head }) => kept.map(format => [format, mapOf(model, format)]).filter(([, map]) => map)
    .map(([format, map]) => `kept: ${formats[format]}, ${closedIn(headOf(map, ...placeOf(head)))}`).join("; "), true);

  drawLegend(); drawPairs(); drawNumbers(); drawMapControls(); drawMapLegend(); drawMaps(); drawHeads(); drawFit();
  follow(models);
  resized(byId("pairs"), () => { drawPairs(); drawFit(); drawMaps(); });
})();

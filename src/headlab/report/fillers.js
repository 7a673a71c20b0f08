"use strict";
/* The page of a fillers study: accuracy, paired differences, attention beside even attention, and answers. */
(() => {
  const { data, el, svg, byId, swatch, known, fixed, signed, span, percent, distinct, ticks, grid, plot, key, stroke, select, showTip, resized } = headlab;
  const { panels } = data, scores = Object.keys(data.scores);
  const models = distinct(panels.map(panel => panel.model)), tasks = distinct(panels.map(panel => panel.task));
  const WORDS = { better: "helps", worse: "hurts", open: "not told from chance" };
  const SHIFTS = { less: "less than even attention leaves", more: "more than even attention leaves", open: "as even attention has it" };
  const VIEWS = { original: "The prompt's own tokens, side by side", whole: "The whole sequence" };
  const titleOf = panel => [models.length > 1 || tasks.length < 2 ? panel.model : null, tasks.length > 1 || models.length < 2 ? panel.task : null].filter(Boolean).join(", ");
  const all = distinct(panels.flatMap(panel => panel.conditions.map(({ name }) => name)));
  const looked = panels.filter(panel => panel.heads.length);
  // At first the plain ones: more lines than that hide each other.
  const plain = panels.flatMap(panel => panel.conditions.filter(({ arm, template }) => !arm && template === "raw").map(({ name }) => name));
  const now = { score: scores[0], model: "", task: "", one: "0", head: headOf(panels[0]), problem: "0", ratio: false, log: false, sorts: new Map(),
    shown: new Set(plain.length ? plain : all) };

  // Dark pages lift the colours, which are those of the figures.
  const colourOf = name => `light-dark(${data.colours[name]}, color-mix(in srgb, ${data.colours[name]} 62%, white))`;
  const chat = condition => condition.template === "chat" && "chat";
  const dot = condition => { const node = swatch(colourOf(condition.name)); if (chat(condition)) node.classList.add("chat"); return node; };
  const conditionOf = (panel, name) => panel.conditions.find(condition => condition.name === name);
  const small = text => text && el("span", { class: "soft" }, text);
  const share = value => known(value) ? `${percent(value)} %` : "\u2013";
  const points = value => known(value) ? signed(100 * value, 1) : "\u2013";
  const number = (value, digits = 3) => known(value) ? String(+value.toPrecision(digits)).replace("-", "\u2212") : "\u2013";
  const chance = p => !known(p) ? "\u2013" : p < 1e-4 ? "<0.0001" : number(p, 2);
  const each = count => known(count) ? String(+count.toFixed(1)) : "\u2013"; // of several seeds a mean
  const counted = (count, word) => `${number(count, 4)} ${word}${count === 1 ? "" : "s"}`;
  const scored = panel => panel.scores.includes(now.score) ? now.score : panel.scores[0];
  const shownPanels = () => panels.filter(panel => (!now.model || panel.model === now.model) && (!now.task || panel.task === now.task));
  const panelNow = () => panels[+now.one];
  function headOf(panel) { return panel.head ?? "mean"; }
  const headSays = (panel, head) => head !== "mean" ? head : `mean of ${counted(panel.heads.length, "head")}`;

  // Choices: each stands wherever it bears on what is shown, and all that are the same move together.
  const named = list => list.map(name => [name, name]);
  const rightOf = (panel, answer) => answer.texts.filter(text => text.right[scored(panel)]).length;
  const CHOICES = {
    score: ["right by", () => scores.length > 1 && named(scores)],
    model: ["model", () => models.length > 1 && [["", "all"], ...named(models)]],
    task: ["problems", () => tasks.length > 1 && [["", "all"], ...named(tasks)]],
    one: ["model, problems", () => panels.length > 1 && panels.map((panel, i) => [String(i), `${panel.model}, ${panel.task}`])],
    head: ["head", () => looked.some(({ heads }) => heads.length > 1) && [...(panelNow().heads.length > 1 ? [["mean", headSays(panelNow(), "mean")]] : []), ...named(panelNow().heads)]],
    problem: ["problem", () => panels.some(({ answers }) => answers.length > 1) && panelNow().answers.map((answer, i) => [String(i), `${answer.id}: right in ${rightOf(panelNow(), answer)} of ${answer.texts.length}`])],
  };
  const choices = (host, ...names) => byId(host)?.prepend(...names.filter(name => CHOICES[name][1]()).map(name => {
    const box = select(CHOICES[name][0], CHOICES[name][1](), now[name], value => { set(name, value); drawAll(); });
    box.querySelector("select").dataset.of = name;
    return box;
  }));
  function set(name, value) {
    now[name] = value;
    if (name === "one") {
      if (!panelNow().attention[now.head]) now.head = headOf(panelNow());
      now.problem = "0";
    }
    for (const of of Object.keys(CHOICES)) {
      const options = CHOICES[of][1]();
      document.querySelectorAll(`select[data-of="${of}"]`).forEach(box => { // what can be chosen may depend on what was
        box.replaceChildren(...options.map(([value, text]) => el("option", { value }, text)));
        box.value = now[of];
      });
    }
  }

  // 1. Accuracy.
  const diamond = (x, y) => svg("path", { class: "published full", d: `M${x} ${y - 5}l5 5-5 5-5-5z` });
  const bare = name => name.replace(/-chat$/, "");
  function drawLegend() {
    const every = new Map(panels.flatMap(panel => panel.conditions.map(condition => [condition.name, condition])));
    const own = [...every.values()].filter(condition => !chat(condition) || !every.has(bare(condition.name)) || bare(condition.name) === condition.name);
    const block = (colour, name) => svg("rect", { class: `bar ${name || ""}`, x: 6, y: .5, width: 14, height: 11, style: { "--c": colour } });
    byId("accuracy-legend").replaceChildren(...own.map(condition => key([block(colourOf(condition.name), chat(condition))], condition.name)), ...[
      [...every.values()].some(chat) && key([block("var(--grey)", "chat")], "pale: in a chat template"),
      key([svg("line", { class: "sure", x1: 13, x2: 13, y1: 0, y2: 12 })], "95 % interval over problems"),
      panels.some(panel => panel.conditions.some(({ published }) => known(published))) && key([diamond(13, 6)], "published"),
    ].filter(Boolean));
  }
  const sureOf = (panel, condition) => condition.shares[scored(panel)];
  const changeRows = (panel, condition) => {
    const change = condition.changes[scored(panel)];
    return change ? [el("div", {}, `against ${condition.baseline} `, el("b", {}, `${points(change.mean)} points`), small(` ${span(change.low, change.high, points) ?? ""}`)),
      el("div", { class: "soft" }, `p = ${chance(change.p)}, adjusted ${chance(change.adjusted)}: ${WORDS[change.verdict]}`)] : [el("div", { class: "soft" }, "the baseline")];
  };
  const barTip = (panel, condition) => {
    const [mean, low, high] = sureOf(panel, condition);
    return [el("div", { class: "top" }, dot(condition), condition.name), el("div", { class: "soft" }, condition.says),
      el("div", {}, "right ", el("b", { data: { of: "mean" } }, share(mean)), small(` ${span(low, high, percent) ?? ""}, n = ${panel.n}${panel.seeds.length > 1 ? ` x ${panel.seeds.length} seeds` : ""}`)),
      ...changeRows(panel, condition), known(condition.published) && el("div", { class: "soft" }, `published: ${number(condition.published)} %`),
      el("div", { class: "soft" }, `cut off ${share(condition.shares.truncated[0])}, without a box ${share(condition.shares.unboxed[0])}, ${counted(condition.tokens, "token")} each`)].filter(Boolean);
  };
  // Names that start alike often end differently.
  const cut = (text, most) => { const letters = [...text], half = Math.floor(most / 2); return letters.length > most ? `${letters.slice(0, most - half - 1).join("")}\u2026${letters.slice(-half).join("")}` : text; };
  const light = colour => { const [red, green, blue] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16)); return .3 * red + .59 * green + .11 * blue > 145; };
  const inkOn = condition => chat(condition) ? "var(--ink)" : `light-dark(${light(data.colours[condition.name]) ? "#111" : "#fff"}, #111)`;
  function drawBars() {
    const shown = shownPanels(), rows = tasks.filter(task => shown.some(panel => panel.task === task));
    const most = Math.max(...shown.flatMap(panel => panel.conditions.map(({ name }) => [...name].length)));
    grid(byId("accuracy-grid"), { shape: .8, low: 230, high: 320, least: 40 + 17 * Math.min(16, Math.max(13, ...shown.map(panel => panel.conditions.length))),
      rows: rows.map(name => ({ name, data: { task: name } })), columns: models.filter(model => shown.some(panel => panel.model === model)).map(name => ({ name })),
      at: (row, column) => shown.find(panel => panel.task === row.name && panel.model === column.name),
      facts: panel => `n = ${panel.n}`,
      row: found => Math.min(100, 3 + 1.04 * Math.max(10, ...found.flatMap(panel => panel.conditions.flatMap(one => [100 * (sureOf(panel, one)[2] ?? 0), one.published ?? 0])))),
      tile: (panel, { width, height, first, shared }) => drawTile(panel, width, height, first, shared, most) });
    const several = panels.some(panel => panel.seeds.length > 1);
    byId("accuracy-caption").textContent = [
      `${distinct(panels.map(({ decoding }) => decoding)).join("; ")}.`.replace(/^./, letter => letter.toUpperCase()), several && "Several seeds: a problem counts with its mean over them.",
      panels.some(panel => panel.conditions.some(({ published }) => known(published))) && `Published: ${data.published.source}. ${data.published.note}`,
    ].filter(Boolean).join(" ");
    document.querySelectorAll("[data-says=score]").forEach(node => {
      node.textContent = `Right: ${data.scores[now.score]}.`;
      node.classList.toggle("caveat", now.score === "math-published");
    });
  }
  function drawTile(panel, width, height, first, top, longest) {
    const own = panel.conditions, n = own.length, pitch = (width - 70) / n, letters = Math.min(14, longest), flat = pitch >= 6.3 * letters;
    const upright = pitch < 15, bottom = flat ? 24 : upright ? 10 + 6.3 * letters : 16 + 4.6 * letters;
    const list = ticks(0, top, 5), stops = own.map((_, i) => i);
    const chart = plot({ width, height: height + bottom - 24, bottom, step: 1, x: { min: -.6, max: n - .4, ticks: [], stops, label: "" },
      y: { min: 0, max: top, ticks: list, digits: 0, label: first ? "right, %" : "" },
      label: `Percent right by condition, ${panel.model}, ${panel.task}. ${own.map(one => `${one.name} ${share(sureOf(panel, one)[0])}`).join(", ")}. Arrow keys tell more.`,
      move: (i, x, y) => { showTip(x, y, barTip(panel, own[i])); return []; } });
    const { px, py, h, inner, over } = chart, thick = px(.86) - px(0), wide = thick >= 25;
    own.forEach((condition, i) => {
      const [mean, low, high] = sureOf(panel, condition).map(value => known(value) ? 100 * value : null), x = px(i), colours = { "--c": colourOf(condition.name) };
      if (known(mean)) inner.append(svg("rect", { class: `bar ${chat(condition) || ""}`, x: x - thick / 2, y: py(mean), width: thick, height: h - py(mean), style: colours, data: { condition: condition.name } }));
      if (known(low) && known(high)) over.append(svg("line", { class: "sure", x1: x, x2: x, y1: py(low), y2: py(high), data: { condition: condition.name } }));
      if (wide && known(mean)) inner.append(svg("text", { ...(h - py(mean) < 18 ? { class: "value halo", style: { "--c": "var(--soft)" } } : { class: "value", style: { "--c": inkOn(condition) } }), x, y: h - 5, "text-anchor": "middle" }, fixed(mean, mean < 9.95 ? 1 : 0)));
      if (known(condition.published)) over.append(svg("g", {}, svg("title", {}, `published: ${condition.published} %`), diamond(x, py(condition.published))));
      const turn = flat ? null : upright ? `rotate(-90,${x},${h + 8}) translate(0,4)` : `rotate(-45,${x},${h + 12}) translate(2,2)`;
      if (pitch >= 9) over.append(svg("text", { x, y: h + (flat ? 16 : upright ? 8 : 12), "text-anchor": flat ? "middle" : "end", transform: turn }, cut(condition.name, letters)));
    });
    return chart.root;
  }

  // 2. Differences. A table whose columns sort it: rows of [cell, what it is sorted by] for each column.
  function sortable(name, columns, rows, attributes, ...caption) {
    const there = value => known(value) || typeof value === "string", compare = (a, b) => typeof a === "string" ? a.localeCompare(b) : a - b;
    const body = el("tbody"), ordered = () => {
      const { column, way } = now.sorts.get(name) ?? {};
      return way ? [...rows].sort(({ [column]: [, a] }, { [column]: [, b] }) => there(a) && there(b) ? way * compare(a, b) : there(b) - there(a)) : rows;
    };
    const show = () => {
      const { column, way } = now.sorts.get(name) ?? {};
      body.replaceChildren(...ordered().map(row => row.node));
      heads.forEach((head, i) => head.setAttribute("aria-sort", column !== i ? "none" : way > 0 ? "ascending" : "descending"));
    };
    const heads = columns.map(([title, isNumber, edge], i) => el("th", { class: edge || (isNumber && "n"), scope: "col" }, el("button", { type: "button", class: "sort", click: () => {
      const sort = now.sorts.get(name);
      now.sorts.set(name, sort?.column !== i ? { column: i, way: 1 } : sort.way > 0 ? { column: i, way: -1 } : null); // a third click: as it was
      show();
    } }, title)));
    rows.forEach(row => { row.node = el("tr", { data: row.data }, row.map(([cell]) => cell)); });
    const table = el("table", attributes, el("caption", {}, el("span", { class: "title" }, ...caption)), el("thead", {}, el("tr", {}, heads)), body);
    show();
    return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption[0] }, table);
  }
  const cell = (of, ...inside) => el("td", { class: "n", data: { of } }, inside);
  const nameCell = condition => el("td", { class: "condition", data: { of: "condition" } }, dot(condition), el("b", {}, condition.name), small(condition.says));
  function drawChanges() {
    byId("change-tables").replaceChildren(...shownPanels().map(panel => {
      const score = scored(panel), single = panel.seeds.length === 1;
      const rows = panel.conditions.map((condition, place) => {
        const [mean, low, high] = condition.shares[score], change = condition.changes[score], { truncated, unboxed } = condition.shares;
        const verdict = change ? WORDS[change.verdict] : "the baseline";
        return Object.assign([
          [nameCell(condition), place],
          [cell("right", el("b", {}, share(mean)), small(span(low, high, percent))), mean],
          [el("td", { class: "name edge", data: { of: "baseline" } }, condition.baseline ?? "\u2013"), condition.baseline ?? ""],
          [cell("difference", points(change?.mean), small(span(change?.low, change?.high, points))), change?.mean],
          [cell("gained", change ? `+${each(change.gained)} \u2212${each(change.lost)}` : "\u2013"), change && change.gained - change.lost],
          [cell("p", chance(change?.p)), change?.p],
          [cell("adjusted", chance(change?.adjusted)), change?.adjusted],
          [el("td", { class: `edge verdict ${change && change.verdict !== "open" ? verdict : ""}`, data: { of: "verdict" } }, change && change.verdict !== "open" ? el("b", {}, verdict) : verdict), change ? ["better", "open", "worse"].indexOf(change.verdict) : null],
          [cell("truncated", share(truncated[0])), truncated[0]],
          [cell("unboxed", share(unboxed[0])), unboxed[0]],
          [cell("tokens", fixed(condition.tokens, 1)), condition.tokens],
        ], { data: { condition: condition.name } });
      });
      return sortable(`${panel.model}\n${panel.task}`,
        [["condition"], ["right", 1], ["baseline", 0, "edge"], ["difference", 1], ["gained, lost", 1], [single ? "p (McNemar)" : "p (sign flips)", 1], ["p (Holm)", 1], ["verdict", 0, "edge"], ["cut off", 1], ["no box", 1], ["tokens", 1]],
        rows, { class: "shares changes", data: { model: panel.model, task: panel.task } },
        `${panel.model}, ${panel.task}`, small(`n = ${panel.n}${single ? "" : `, ${panel.seeds.length} seeds`}${score === now.score ? "" : `, right by ${score}`}`));
    }));
    const total = panels.reduce((sum, panel) => sum + panel.conditions.filter(one => one.changes[scored(panel)]).length, 0);
    byId("change-caption").textContent = [
      "difference: in points, with the 95 % interval of a paired bootstrap over problems.",
      "gained, lost: problems that only the condition, or only the baseline, gets right" + (panels.some(panel => panel.seeds.length > 1) ? ", on average over seeds." : "."),
      `p (Holm): adjusted for all ${counted(total, "comparison")} of the run; helps and hurts need one of at most 0.05.`,
      "cut off: answers that ended at the limit of tokens. no box: answers without \\boxed{}.",
    ].join(" ");
  }

  // 3. Attention. Whatever cannot be seen in a token gets a sign, or its number.
  const SIGNS = { " ": "\u2423", "\n": "\u21b5", "\t": "\u21e5" };
  const visible = text => text === "" ? "\u2205" : text.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Z}]/gu, letter => SIGNS[letter] || `\u27e8U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
  const token = text => text === undefined ? null : el("b", { class: "token" }, visible(text));
  const linesOf = (panel, condition, view, head = now.head) => {
    const own = panel.attention[head]?.[condition.name], found = own?.[view] ?? own?.original, same = panel.attention.mean?.[condition.name];
    if (!found?.mean.length) return null;
    const even = found.uniform ?? (same[view] ?? same.original).uniform, ratio = found.mean.map((value, i) => known(value) && even[i] > 0 ? value / even[i] : null);
    const ends = (shares, of) => shares ? shares.map((value, i) => known(value) && known(of[i]) ? value / 1000 * of[i] : null) : null;
    return { mean: found.mean, even, ratio, low: ends(found.low, found.mean), high: ends(found.high, found.mean), ratioLow: ends(found.ratio_low, ratio), ratioHigh: ends(found.ratio_high, ratio) };
  };
  const drawn = lines => now.ratio ? { mean: lines.ratio, low: lines.ratioLow, high: lines.ratioHigh } : lines;
  const tokenAt = (panel, condition, view, i) => (view === "whole" && condition.inserts ? panel.tokens.whole[condition.name] : panel.tokens.original[condition.template])?.[i];
  const within = (condition, i) => condition.inserted && i >= condition.inserted[0] && i < condition.inserted[1];
  function logAxis(values) {
    const floor = Math.min(...values) / 1.3, top = Math.max(...values) * 1.3, decades = Math.log10(top / floor), list = [];
    const steps = decades > 2.5 ? [1] : decades > 1.2 ? [1, 3] : [1, 2, 5];
    for (let ten = Math.floor(Math.log10(floor)); ten <= Math.log10(top); ten++) for (const step of steps) if (step * 10 ** ten >= floor && step * 10 ** ten <= top) list.push(Math.log10(step * 10 ** ten));
    return { min: Math.log10(floor), max: Math.log10(top), ticks: list, show: value => number(10 ** value, 1) };
  }
  function drawAttention() {
    if (!byId("attention")) return;
    const panel = panelNow(), own = panel.conditions.filter(({ name }) => now.shown.has(name));
    grid(byId("attention-grid"), { shape: .58, low: 230, high: 330, least: 380, rows: [{ name: `${titleOf(panel)}, ${headSays(panel, now.head)}`, data: {} }],
      columns: Object.entries(VIEWS).map(([view, name]) => ({ name, view, data: { view } })), row: () => null,
      at: (_, { view }) => { const found = own.map(condition => ({ condition, lines: linesOf(panel, condition, view) })).filter(({ lines }) => lines); return found.length ? found : null; },
      tile: (found, { column, width, height, first }) => drawView(panel, found, column.view, width, height, first) });
    byId("attention-caption").textContent = panel.heads.length ? [
      `Mean over ${counted(panel.prompts, "prompt")}; positions that at least half of them have. On the left, inserted tokens are left out and the others closed up; tokens are told of the first prompt.`,
      now.head === "mean" ? "The mean over heads has no band." : own.length > BANDS ? `Bands (95 % interval over prompts) are drawn of up to ${BANDS} conditions.` : "Bands: 95 % interval over prompts.",
      panel.conditions.some(({ inserted }) => inserted) && "Grey on the right: what is inserted.",
      now.ratio && "1 is what more tokens alone would give.",
    ].filter(Boolean).join(" ") : "";
  }
  const BANDS = 6;
  function drawView(panel, found, view, width, height, first) {
    const last = Math.max(1, ...found.map(({ lines }) => lines.mean.length - 1));
    const values = found.flatMap(({ lines }) => now.ratio ? [...lines.ratio, 1] : [...lines.mean, ...lines.even]).filter(value => known(value) && (!now.log || value > 0));
    const top = 1.06 * Math.max(...values), list = ticks(0, top, 5);
    const y = now.log && values.length ? logAxis(values) : { min: 0, max: top || 1, ticks: list, show: value => number(value) };
    const level = value => !known(value) ? null : !now.log ? value : value > 0 ? Math.log10(value) : y.min - 1;
    const chart = plot({ width, height, step: 1, x: { max: last, ticks: ticks(0, last, 6).filter(Number.isInteger), snap: Math.round, label: "token position" },
      y: { ...y, label: !first ? "" : now.ratio ? "observed / even" : "attention" },
      label: `${VIEWS[view]}: attention by position, ${panel.model}, ${panel.task}, ${headSays(panel, now.head)}. Arrow keys tell the numbers.`,
      move: (i, x, y) => {
        const there = found.filter(({ lines }) => known(lines.mean[i])), templates = distinct(there.map(({ condition }) => condition.template));
        const heads = view === "original" ? templates.map(template => el("div", { class: "top" }, `position ${i} `, token(panel.tokens.original[template]?.[i]), templates.length > 1 && small(` ${template}`))) : [el("div", { class: "top" }, `position ${i}`)];
        showTip(x, y, [...heads, ...there.map(({ condition, lines }) => el("div", { data: { condition: condition.name } }, dot(condition), `${cut(condition.name, 24)} `,
          view === "whole" && [token(tokenAt(panel, condition, view, i)), " "], el("b", { data: { of: "mean" } }, number(lines.mean[i])),
          there.length < 5 && known(lines.low?.[i]) && el("span", { class: "even" }, ` (${span(lines.low[i], lines.high[i], number)})`),
          el("span", { class: "even" }, `, even ${number(lines.even[i])}, ${number(lines.ratio[i])}x`), view === "whole" && within(condition, i) && el("span", { class: "even" }, ", inserted"))),
          !there.length && el("div", { class: "soft" }, "too few prompts")].filter(Boolean));
        return there.map(({ condition, lines }) => [i, level(drawn(lines).mean[i]), colourOf(condition.name)]).filter(([, at]) => known(at));
      } });
    const mark = name => { chart.inner.lastChild.dataset.condition = name; }, at = lines => lines.map((_, i) => i);
    if (view === "whole") for (const range of distinct(found.map(({ condition }) => condition.inserted).filter(Boolean).map(String))) {
      const [start, end] = range.split(",").map(Number);
      chart.inner.append(svg("rect", { class: "inserted", x: chart.px(start - .5), width: chart.px(end) - chart.px(start), y: 0, height: chart.h }));
    }
    if (now.ratio) chart.line([0, last], [level(1), level(1)], "matched", {});
    for (const { condition, lines } of found) {
      const colours = { "--c": colourOf(condition.name), "--r": colourOf(condition.name) }, { mean, low, high } = drawn(lines), xs = at(mean);
      if (low && found.length <= BANDS) { chart.band(xs, low.map(value => level(known(value) ? Math.max(0, value) : null)), high.map(level), "band", colours); mark(condition.name); }
      if (!now.ratio) { chart.line(xs, lines.even.map(level), "matched", colours); mark(condition.name); }
      chart.line(xs, mean.map(level), `line thin ${chat(condition) || ""}`, colours);
      mark(condition.name);
    }
    return chart.root;
  }
  function drawAttentionControls() {
    if (!byId("attention")) return;
    const measures = [[false, "observed"], [true, "observed / even"]];
    byId("attention-controls").append(el("span", { class: "two", role: "group", "aria-label": "shown" }, measures.map(([value, text]) =>
      el("button", { type: "button", data: { measure: value ? "ratio" : "observed" }, "aria-pressed": String(now.ratio === value), click: event => {
        now.ratio = value;
        event.target.parentNode.querySelectorAll("button").forEach(one => one.setAttribute("aria-pressed", String(one === event.target)));
        drawAttentionLegend(); drawAttention();
      } }, text))),
    el("label", {}, el("input", { type: "checkbox", id: "log", change: event => { now.log = event.target.checked; drawAttention(); } }), "log scale"));
  }
  let chipsOf = null;
  function drawAttentionLegend() {
    if (!byId("attention")) return;
    const panel = panelNow(), names = panel.conditions.map(({ name }) => name), keys = [
      key([stroke("var(--grey)")], "observed"), panel.conditions.some(chat) && key([stroke("var(--grey)", "line chat")], "observed, chat template"),
      key([svg("line", { class: "matched", x1: 0, x2: 26, y1: 6, y2: 6 })], now.ratio ? "even attention, here 1" : "even attention")].filter(Boolean);
    const host = byId("attention-legend");
    if (chipsOf === String(names) && host.firstChild) { host.replaceChildren(host.firstChild, ...keys); return; } // a chip that has the focus keeps it
    chipsOf = String(names);
    const chips = panel.conditions.map(condition => el("button", { type: "button", class: "chip", "aria-pressed": String(now.shown.has(condition.name)), data: { condition: condition.name }, title: condition.says, click: event => {
      const { name } = condition, left = names.filter(one => now.shown.has(one));
      if (now.shown.has(name)) { if (left.length > 1) now.shown.delete(name); } else now.shown.add(name); // something is always shown
      event.currentTarget.setAttribute("aria-pressed", String(now.shown.has(name)));
      drawAttention();
    } }, dot(condition), condition.name));
    host.replaceChildren(el("div", { class: "models", role: "group", "aria-label": "conditions shown" }, chips), ...keys);
  }

  // 4. Shifts.
  function drawShifts() {
    if (!byId("shifts")) return;
    const panel = panelNow(), own = panel.shifts[now.head] ?? [];
    if (!own.length) { byId("shift-table").replaceChildren(el("p", { class: "soft" }, "Not measured.")); return; }
    const W = 130, ends = own.flatMap(({ low, high, beyond }) => [low, high, beyond]).filter(value => value > 0).map(value => Math.abs(Math.log(value))), most = Math.max(Math.log(1.1), ...ends);
    const place = value => W / 2 + Math.log(value) / most * (W / 2 - 6);
    const rows = own.map((shift, i) => {
      const condition = conditionOf(panel, shift.condition), { low, high, beyond } = shift;
      return Object.assign([
        [nameCell(condition), i],
        [el("td", { data: { of: "region" } }, shift.region), shift.region],
        [el("td", { class: "name" }, shift.baseline), shift.baseline],
        [cell("observed", fixed(shift.observed)), shift.observed],
        [cell("even", fixed(shift.uniform)), shift.uniform],
        [cell("beyond", el("b", {}, fixed(beyond)), small(span(low, high))), beyond],
        [el("td", {}, svg("svg", { class: "range", width: W, height: 16, "aria-hidden": "true", style: { "--c": colourOf(shift.condition) } }, svg("line", { class: "ground", x1: 6, x2: W - 6, y1: 8, y2: 8 }), svg("line", { class: "chance", x1: W / 2, x2: W / 2, y1: 1, y2: 15 }),
          low > 0 && high > 0 && svg("line", { class: "between", x1: place(low), x2: place(high), y1: 8, y2: 8 }), beyond > 0 && svg("circle", { cx: place(beyond), cy: 8, r: 4 }))), beyond],
        [el("td", { data: { of: "verdict" } }, shift.verdict === "open" ? SHIFTS.open : el("b", {}, SHIFTS[shift.verdict])), ["less", "open", "more"].indexOf(shift.verdict)],
      ], { data: { condition: shift.condition, region: shift.region } });
    });
    byId("shift-table").replaceChildren(sortable("shifts", [["condition"], ["attention on"], ["baseline"], ["observed", 1], ["even", 1], ["beyond", 1], ["less, more"], ["verdict"]], rows,
      { class: "shares shifts" }, `${panel.model}, ${panel.task}, ${headSays(panel, now.head)}`, small(`n = ${counted(Math.max(...own.map(({ n }) => n)), "prompt")}`)));
  }

  // 5. Answers.
  function drawAnswers() {
    const panel = panelNow(), answer = panel.answers[+now.problem], score = scored(panel);
    if (!answer) { byId("answer-question").replaceChildren(el("p", { class: "soft" }, "No answers were kept.")); byId("answer-grid").replaceChildren(); return; }
    byId("answer-question").replaceChildren(el("blockquote", {}, answer.question),
      el("p", {}, "Answer: ", el("b", { class: "gold" }, answer.answer), el("span", { class: "soft" }, ` ${[answer.id, answer.subject, answer.level && `level ${answer.level}`].filter(Boolean).join(", ")}; right by ${score}${panel.seeds.length > 1 ? `; seed ${panel.seeds[0]}` : ""}`)));
    byId("answer-grid").replaceChildren(...answer.texts.map(text => {
      const condition = conditionOf(panel, text.condition), right = text.right[score];
      return el("article", { class: "card", style: { "--c": colourOf(condition.name) }, data: { condition: condition.name } }, el("h3", {}, dot(condition), condition.name), el("p", { class: "soft" }, condition.says),
        el("div", { class: "marks" }, el("span", { class: right ? "hit" : "miss" }, right ? "right" : "wrong"), text.end === "length" && el("span", { class: "flag" }, "cut off"), !text.boxed && el("span", { class: "flag" }, "no box"), el("span", {}, counted(text.tokens, "token"))),
        el("div", { class: "said", tabindex: 0, role: "region", "aria-label": `Answer, ${condition.name}` }, text.text, !text.text.trim() && el("span", { class: "soft" }, "(nothing)")),
        el("details", {}, el("summary", { class: "soft" }, "Prompt"), el("blockquote", { class: "other" }, text.prompt)));
    }));
  }

  function drawAll() { drawBars(); drawChanges(); drawAttentionLegend(); drawAttention(); drawShifts(); drawAnswers(); }
  choices("accuracy-controls", "score", "model", "task");
  choices("change-controls", "score", "model", "task");
  drawAttentionControls();
  choices("attention-controls", "one", "head");
  choices("shift-controls", "one", "head");
  choices("answer-controls", "one", "problem", "score");
  drawLegend();
  drawAll();
  resized(byId("accuracy"), () => { drawBars(); drawAttention(); });
})();

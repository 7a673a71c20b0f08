"use strict";
/* Charts, head maps and the chosen head: what the pages of all studies share. */
const headlab = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  // Elements. Text from the data only ever becomes text nodes.
  const build = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "data") Object.assign(node.dataset, value);
      else if (name === "style") for (const [key, set] of Object.entries(value)) node.style.setProperty(key, set);
      else if (typeof value === "function") node.addEventListener(name, value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
    return node;
  };
  const el = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) =>
    build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  const byId = id => document.getElementById(id);
  const swatch = colour => el("span", { class: "swatch", style: { "--c": colour }, "aria-hidden": "true" });

  // Numbers.
  const known = value => typeof value === "number" && isFinite(value);
  const fixed = (value, digits = 2) =>
    known(value) ? value.toFixed(digits).replace(/^-(0(\.0*)?)$/, "$1").replace("-", "\u2212") : "\u2013";
  const signed = (value, digits = 2) => (value > 0 && +value.toFixed(digits) ? "+" : "") + fixed(value, digits);
  const span = (low, high, show = fixed) =>
    known(low) && known(high) ? `${show(low)} to ${show(high)}`
      : known(low) ? `from ${show(low)}` : known(high) ? `up to ${show(high)}` : null;
  const percent = (value, digits = 1) => known(value) ? fixed(100 * value, digits) : "\u2013";
  const nearest = (list, value) => list.reduce((best, one, i) => Math.abs(one - value) < Math.abs(list[best] - value) ? i : best, 0);
  const distinct = values => [...new Set(values)];
  const told = (values, say) => { const list = distinct(values); return list.length && list.length < 4 ? say(list.join(" or ")) : null; };
  const digitsFor = size => size > 0 ? Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(size)))) : 2;
  const ticks = (low, high, about) => {
    const rough = (high - low) / about, ten = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].find(nice => nice * ten >= rough * 0.999) * ten;
    const list = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at++) list.push(+(at * step).toPrecision(12));
    return list;
  };
  const axis = (min, max) => {
    const list = ticks(min, max, 6);
    const digits = [0, 1, 2, 3, 4, 5].find(count => list.every(value => Math.abs(+value.toFixed(count) - value) < 1e-9)) ?? 6;
    return { min, max, ticks: list, digits };
  };

  // Heads. The order is that of the curve: by descending score, ties by index.
  const headName = (layer, head) => `L${layer}H${head}`;
  const placeOf = name => { const found = /^L(\d+)H(\d+)$/.exec(name); return found && [+found[1], +found[2]]; };
  const ranked = score => {
    const heads = score.flatMap((row, layer) => row.map((value, head) => ({ layer, head, value, name: headName(layer, head) })));
    const order = heads.map((_, index) => index).sort((a, b) => (heads[b].value ?? -Infinity) - (heads[a].value ?? -Infinity) || a - b);
    order.forEach((index, place) => { heads[index].rank = place + 1; });
    return { order: order.map(index => heads[index]), named: new Map(heads.map(head => [head.name, head])) };
  };

  // The chosen head: one for the page, held in the body and in the address.
  let picked = null;
  const watchers = [];
  const tell = () => {
    if (picked) document.body.dataset.head = `${picked.model} ${picked.head}`;
    else delete document.body.dataset.head;
    watchers.forEach(watch => watch(picked));
  };
  const pick = (model, head) => {
    picked = !model || (picked && picked.model === model && picked.head === head) ? null : { model, head };
    const clean = location.href.split("#")[0];
    try { history.replaceState(null, "", picked ? `#head=${encodeURIComponent(`${model} ${head}`)}` : clean); } catch { /* an address that may not change */ }
    tell();
  };
  const follow = models => {
    const exists = (model, head) => {
      const shape = models.find(one => one.name === model), place = placeOf(head);
      return Boolean(shape && place && place[0] < shape.layers && place[1] < shape.heads);
    };
    const read = () => {
      if (!location.hash.startsWith("#head=")) return;
      let said = "";
      try { said = decodeURIComponent(location.hash.slice(6)); } catch { return; }
      const cut = said.lastIndexOf(" "), model = said.slice(0, cut), head = said.slice(cut + 1);
      if (cut < 1 || !exists(model, head)) return;
      picked = { model, head };
      tell();
      document.querySelectorAll("#map-groups details").forEach(group => { if (group.dataset.model === model) group.open = true; });
    };
    addEventListener("hashchange", read);
    read();
  };
  document.addEventListener("keydown", event => { if (event.key === "Escape") { hideTip(); if (picked) pick(null); } });

  // The chosen head, said at the foot of the window.
  const foot = (say, long) => {
    const says = el("span"), held = el("div", { class: long ? "held long" : "held", hidden: true, role: "status" }, says, el("button", { type: "button", click: () => pick(null) }, "clear"));
    document.body.append(held);
    watchers.push(now => {
      if (now) says.replaceChildren(el("b", {}, `${now.model} ${now.head}`), say(now));
      held.hidden = !now;
    });
  };

  // The tooltip: rows of text beside the pointer.
  const tipBox = el("div", { class: "tip", role: "status", hidden: true });
  document.body.append(tipBox);
  const hideTip = () => { tipBox.hidden = true; };
  const showTip = (x, y, rows) => {
    tipBox.replaceChildren(...rows);
    tipBox.hidden = false;
    const box = tipBox.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth - 8 ? x - 16 - box.width : x + 16;
    const top = y + 14 + box.height > innerHeight - 8 ? y - 14 - box.height : y + 14;
    tipBox.style.left = `${Math.max(8, Math.min(left, innerWidth - box.width - 8))}px`;
    tipBox.style.top = `${Math.max(8, top)}px`;
  };
  addEventListener("scroll", hideTip, { passive: true });

  // A plot: axes and an inner area whose origin is its upper left corner; nothing leaves that area.
  // x runs from 0 unless it says min; where only some of its values can be read off, snap gives the one that is meant,
  // or stops are all of them, from left to right, in uneven steps.
  const plot = ({ width, height, x, y, label, move, step, bottom = 36 }) => {
    const edge = { left: 52, right: 18, top: 20, bottom };
    const w = width - edge.left - edge.right, h = height - edge.top - edge.bottom;
    const bend = x.log ? Math.log1p : value => value, unbend = x.log ? Math.expm1 : value => value;
    const start = x.min ?? 0, reach = bend(x.max) - bend(start), stops = x.stops;
    const snap = stops ? value => stops[nearest(stops, value)] : x.snap || (value => value);
    const px = value => (bend(value) - bend(start)) / reach * w;
    const py = value => (y.max - value) / (y.max - y.min) * h;
    const root = svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, tabindex: 0 });
    const inner = svg("svg", { x: edge.left, y: edge.top, width: w, height: h, overflow: "hidden" });
    const over = svg("g", { transform: `translate(${edge.left},${edge.top})` });
    const axes = svg("g", { transform: `translate(${edge.left},${edge.top})` });
    for (const value of y.ticks) {
      const at = py(value);
      axes.append(svg("line", { class: value === 0 ? "zero" : "grid", x1: 0, x2: w, y1: at, y2: at }),
        svg("text", { x: -7, y: at + 4, "text-anchor": "end" }, y.show ? y.show(value) : fixed(value, y.digits)));
    }
    let last = -Infinity;
    for (const value of x.ticks) {
      const at = px(value), half = 4 * String(x.show ? x.show(value) : value).length;
      if (at - half < last) continue;
      last = at + half + 4;
      axes.append(svg("line", { class: "axis", x1: at, x2: at, y1: h, y2: h + 4 }),
        svg("text", { x: at, y: h + 16, "text-anchor": "middle" }, x.show ? x.show(value) : String(value)));
    }
    axes.append(svg("line", { class: "axis", x1: 0, x2: w, y1: h, y2: h }),
      svg("text", { x: w, y: h + 32, "text-anchor": "end" }, x.label),
      svg("text", { transform: `translate(-42,${h / 2}) rotate(-90)`, "text-anchor": "middle" }, y.label));
    const cursor = svg("g", { "pointer-events": "none" });
    root.append(axes, inner, over, cursor);
    cursor.setAttribute("transform", `translate(${edge.left},${edge.top})`);
    const quiet = () => { cursor.replaceChildren(); hideTip(); };
    const show = (value, clientX, clientY) => {
      const dots = move(value, clientX, clientY).filter(([, at]) => at >= y.min && at <= y.max);
      const at = px(value);
      cursor.replaceChildren(svg("line", { class: "cursor", x1: at, x2: at, y1: 0, y2: h }),
        ...dots.map(([k, level, colour]) => svg("circle", { class: "dot", cx: px(k), cy: py(level), r: 4.5, style: { "--c": colour } })));
    };
    const within = value => snap(Math.max(start, Math.min(x.max, value)));
    let key = start;
    const pointed = event => {
      const box = root.getBoundingClientRect(), scale = width / box.width;
      const at = (event.clientX - box.left) * scale - edge.left;
      if (at < -8 || at > w + 8) return quiet();
      key = within(unbend(bend(start) + Math.max(0, at) / w * reach));
      show(key, event.clientX, event.clientY);
    };
    if (move) {
      root.addEventListener("pointermove", pointed);
      root.addEventListener("pointerdown", pointed);
      root.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") quiet(); });
      root.addEventListener("blur", quiet);
      root.addEventListener("keydown", event => {
        const way = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 }[event.key];
        if (!way) return;
        event.preventDefault();
        key = stops ? stops[Math.max(0, Math.min(stops.length - 1, stops.indexOf(key) + way))] : within(Math.round(key / step + way) * step);
        const box = root.getBoundingClientRect(), scale = box.width / width;
        show(key, box.left + (edge.left + px(key)) * scale, box.top + (edge.top + h / 2) * scale);
      });
    }
    const points = (xs, ys) => xs.map((value, i) => known(ys[i]) ? `${px(value).toFixed(1)},${py(ys[i]).toFixed(1)}` : null).filter(Boolean);
    return {
      root, inner, over, w, h, px, py,
      line: (xs, ys, name, colours) => inner.append(svg("polyline", { class: name, points: points(xs, ys).join(" "), style: colours })),
      band: (xs, low, high, name, colours) =>
        inner.append(svg("polygon", { class: name, points: [...points(xs, low), ...points(xs, high).reverse()].join(" "), style: colours })),
    };
  };

  // Small multiples: a row of `rows`, each with a tile for every column; one column: the rows side by side. A phone has one.
  // at(row, column) is what a tile shows, or nothing; row(what the row shows) is what its tiles share.
  const GAP = 22;
  const grid = (host, { rows, columns, at, shape, low, high, least = 230, row, facts, tile }) => {
    const room = host.closest("section").clientWidth, fit = Math.max(1, Math.floor((room + GAP) / (least + GAP)));
    const alone = columns.length === 1, count = alone ? rows.length : columns.length;
    const across = Math.ceil(count / Math.ceil(count / fit)), tracks = `repeat(${across}, minmax(0, ${across === 1 ? "46rem" : "1fr"}))`;
    const width = Math.max(260, Math.floor(Math.min(across === 1 ? 736 : Infinity, (room - GAP * (across - 1)) / across)));
    const height = Math.round(Math.min(high, Math.max(low, width * shape)));
    host.style.gridTemplateColumns = alone ? tracks : "minmax(0, 1fr)";
    host.replaceChildren(...rows.map((line, place) => {
      const shown = columns.map(column => at(line, column)), shared = row(shown.filter(Boolean));
      const tiles = columns.map((column, i) => {
        const first = (alone ? place : i) % across === 0, chart = shown[i] && tile(shown[i], { row: line, column, width, height, first, shared });
        return el("figure", { class: "tile", data: { model: column.name, ...line.data, ...column.data } },
          el("figcaption", {}, column.name, shown[i] && facts && el("span", { class: "soft" }, facts(shown[i]))),
          chart || el("p", { class: "none" }, "Not measured."));
      });
      return el("div", { class: "row", role: "group", "aria-label": line.name, data: line.data },
        el("h3", {}, line.name, line.says && el("span", { class: "soft" }, line.says)),
        el("div", { class: "tiles", style: { "grid-template-columns": alone ? "minmax(0, 1fr)" : tracks } }, tiles));
    }));
  };
  // What legends are made of.
  const key = (shape, text) => el("span", { class: "key" }, svg("svg", { width: 26, height: 12, "aria-hidden": "true" }, ...shape), text);
  const stroke = (colour, name = "line") => svg("line", { class: name, x1: 0, x2: 26, y1: 6, y2: 6, style: { "--c": colour } });
  const ramp = (colour, low, high) => el("span", { class: "scale" }, low, el("i", { style: { background: `linear-gradient(90deg, var(--mid), ${colour})` } }), high);

  // A head map: layers from left to right, heads from top to bottom. A study whose maps are not of signed scores says
  // how a cell looks (paint: name, colour, strength, says; dotted: whether it has a dot), what its tip tells, and what stands
  // below (scale, tops). Where not every head was run (estimated), those that were have a frame.
  const headMap = ({ model, task, of = `on ${task}`, score, low, high, estimated, floor, cell, ranks, measure, top = 5, paint, dotted, tip, scale, tops: named }) => {
    const layers = score.length, heads = score[0].length;
    const limit = Math.max(...score.flat().map(value => Math.abs(value ?? 0))) || 1;
    const digits = digitsFor(limit), left = 24, below = 17, gap = cell > 9 ? 1 : 0;
    const width = left + layers * cell + 2, height = heads * cell + below + 1;
    const root = svg("svg", { class: "map", width, height, viewBox: `0 0 ${width} ${height}`, role: "group",
      "aria-label": `Head map of ${model} ${of}: ${layers} layers from left to right, ${heads} heads from top to bottom. Arrow keys move, Enter chooses.`,
      data: { model, task } });
    root.append(svg("rect", { class: "back", x: left - .5, y: .5, width: layers * cell + 1, height: heads * cell }));
    const cells = [], marks = svg("g", { "pointer-events": "none" });
    const interval = (layer, head) => span(low?.[layer]?.[head], high?.[layer]?.[head], value => signed(value, digits));
    score.forEach((row, layer) => row.forEach((value, head) => {
      const name = headName(layer, head), x = left + layer * cell, y = head * cell + 1;
      const look = paint?.(layer, head);
      const rect = svg("rect", { class: `cell ${look ? look.name : value < 0 ? "neg" : "pos"}`, style: look && { fill: look.colour }, x: x + gap / 2, y: y + gap / 2, width: cell - gap, height: cell - gap,
        "fill-opacity": (look ? look.strength : Math.abs(value ?? 0) / limit).toFixed(3), tabindex: -1, role: "button", "aria-pressed": "false",
        "aria-label": look ? `${name}, ${look.says}` : `${name}, ${signed(value, digits)}, rank ${ranks.named.get(name).rank}${estimated?.[layer][head] ? ", estimated" : ""}`, data: { head: name } });
      cells.push(rect);
      if (estimated && !estimated[layer][head]) marks.append(svg("rect", { class: "ran", x: x + .5, y: y + .5, width: cell - 1, height: cell - 1 }));
      if (dotted?.(layer, head)) marks.append(svg("circle", { class: "chosen", cx: x + cell / 2, cy: y + cell / 2, r: Math.max(1.4, Math.min(2.6, cell / 6)) }));
      if (known(floor) && Math.abs(value ?? 0) <= floor) marks.append(svg("circle", { class: "noise", cx: x + cell / 2, cy: y + cell / 2, r: Math.max(.8, Math.min(1.6, cell / 9)) }));
    }));
    const held = svg("g", { class: "outline" });
    root.append(...cells, marks, held);
    const every = (count, room) => [1, 2, 3, 4, 5, 8, 10, 16, 20].find(step => step * cell >= room) || 20;
    for (let layer = 0; layer < layers; layer += every(layers, 20)) root.append(svg("text", { x: left + (layer + .5) * cell, y: heads * cell + 14, "text-anchor": "middle" }, layer));
    for (let head = 0; head < heads; head += every(heads, 13)) root.append(svg("text", { x: left - 5, y: (head + .5) * cell + 5, "text-anchor": "end" }, head));

    const tell = rect => {
      const { value, rank, layer, head, name } = ranks.named.get(rect.dataset.head), box = rect.getBoundingClientRect();
      const between = interval(layer, head);
      showTip(box.right, box.bottom, tip ? tip(layer, head) : [
        el("div", { class: "top" }, name),
        el("div", {}, `${signed(value, digits)} ${measure}`),
        estimated?.[layer][head] && el("div", { class: "soft" }, "not run: estimated by its gradient"),
        between && el("div", { class: "soft" }, `95 % interval ${between}`),
        el("div", { class: "soft" }, `rank ${rank} of ${cells.length}`),
        known(floor) && Math.abs(value) <= floor && el("div", { class: "soft" }, "within rounding"),
      ].filter(Boolean));
    };
    const cellOf = event => event.target.closest?.(".cell");
    root.addEventListener("pointerover", event => { const rect = cellOf(event); if (rect) tell(rect); });
    root.addEventListener("pointerleave", hideTip);
    root.addEventListener("focusin", event => { const rect = cellOf(event); if (rect?.matches(":focus-visible")) tell(rect); });
    root.addEventListener("focusout", hideTip);
    root.addEventListener("click", event => { const rect = cellOf(event); if (rect) { rove(rect); pick(model, rect.dataset.head); } });
    let roving = cells[0];
    const rove = rect => { roving.setAttribute("tabindex", -1); roving = rect; roving.setAttribute("tabindex", 0); };
    root.addEventListener("keydown", event => {
      const index = cells.indexOf(cellOf(event));
      if (index < 0) return;
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(model, cells[index].dataset.head); return; }
      const { layer, head } = ranks.named.get(cells[index].dataset.head);
      const [dx, dy] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] || [0, 0];
      const next = layer + dx >= 0 && layer + dx < layers && head + dy >= 0 && head + dy < heads && cells[(layer + dx) * heads + head + dy];
      if ((dx || dy) && next) { event.preventDefault(); rove(next); next.focus(); }
    });
    rove(cells[0]);

    const largest = named || [...ranks.order].sort((a, b) => Math.abs(b.value ?? 0) - Math.abs(a.value ?? 0)).slice(0, top);
    const tops = largest.map(({ name, value }) =>
      el("button", { type: "button", class: "head", data: { head: name }, title: signed(value, digits), click: () => pick(model, name) }, name));
    const hold = now => {
      const own = now && now.model === model ? ranks.named.get(now.head) : null;
      held.replaceChildren(...(own ? ["out", "in"].map(name => svg("rect", { class: name, x: left + own.layer * cell, y: own.head * cell + 1, width: cell, height: cell, rx: 1.5 })) : []));
      held.toggleAttribute("data-on", Boolean(own));
      root.querySelectorAll(".cell[aria-pressed=true]").forEach(rect => rect.setAttribute("aria-pressed", "false"));
      if (own) cells[own.layer * heads + own.head].setAttribute("aria-pressed", "true");
      tops.forEach(button => button.setAttribute("aria-pressed", String(own?.name === button.dataset.head)));
    };
    hold(picked);
    const under = el("div", { class: "under", style: { "padding-left": `${left}px` } },
      scale || el("span", { class: "scale" }, fixed(-limit, digits), el("i"), signed(limit, digits)), el("span", { class: "tops" }, tops));
    return { root, under, hold, width };
  };
  // As many maps in a row as leave cells that can be hit (want) in maps wide enough (least); a map no taller than a window.
  const cellSize = (model, count, want, least = 0) => {
    const room = byId("map-groups").clientWidth, most = Math.min(22, Math.max(8, 520 / model.heads));
    let cell = 0;
    for (let columns = Math.min(3, count); columns >= 1 && cell < Math.min(want, most); columns--) {
      const wide = (room - 32 * (columns - 1)) / columns;
      cell = columns > 1 && wide < least ? 0 : Math.min(most, (wide - 27) / model.layers);
    }
    return Math.max(7, Math.floor(cell));
  };
  // A fold for each model, filled when first opened: fill(model, keep) gives its figures and keeps the maps among them.
  const folds = (models, fill, mark = () => null) => {
    let maps = [];
    const opened = new Set((models.length <= 3 ? models : models.slice(0, 1)).map(model => model.name));
    watchers.push(now => maps.forEach(map => map.hold(now)));
    return () => {
      maps = [];
      const groups = models.map(model => {
        const inside = el("div", { class: "maps" }), filled = () => inside.replaceChildren(...fill(model, map => maps.push(map)));
        const group = el("details", { class: "group", data: { model: model.name }, open: opened.has(model.name), toggle: () => {
          if (group.open) opened.add(model.name); else opened.delete(model.name);
          if (group.open && !inside.childElementCount) filled();
        } }, el("summary", {}, mark(model), model.name, el("span", { class: "soft" }, `${model.layers} layers x ${model.heads} heads`)), inside);
        return { group, filled };
      });
      byId("map-groups").replaceChildren(...groups.map(({ group }) => group));
      groups.forEach(({ group, filled }) => { if (group.open) filled(); });
    };
  };
  // A table of heads, in groups: a row chooses its head, and has the focus still when the table is drawn anew.
  const headTable = ({ model, own, titles, groups, cells }) => {
    const host = byId("head-table"), from = document.activeElement?.closest?.("#head-table tr"), focused = from && [from.parentNode.dataset.group, from.dataset.head];
    const row = name => el("tr", { class: name === own && "picked", data: { head: name }, click: () => pick(model, name) },
      el("td", {}, el("button", { type: "button", class: "head", "aria-pressed": String(name === own) }, name)), cells(name));
    host.replaceChildren(el("div", { class: "scroll" }, el("table", { class: "heads" },
      el("thead", {}, el("tr", {}, el("th", {}, "head"), titles.map(title => el("th", { class: "n" }, title)))),
      groups.map(({ title, names, none }, i) => el("tbody", { data: { group: i } },
        title && el("tr", { class: "title" }, el("th", { scope: "rowgroup", colspan: 1 + titles.length }, el("span", {}, title))),
        names.map(row), !names.length && none && el("tr", { class: "title" }, el("td", { class: "soft", colspan: 1 + titles.length }, none)))))));
    if (focused) host.querySelector(`tbody[data-group="${focused[0]}"] tr[data-head="${focused[1]}"] button`)?.focus({ preventScroll: true });
  };

  const select = (label, options, value, change) => el("label", {}, label,
    el("select", { "aria-label": label, change: event => change(event.target.value) },
      options.map(([key, text]) => el("option", { value: key, selected: key === value }, text))));

  // Draw anew when there is more or less room, but not for paper.
  const resized = (node, draw) => {
    let width = node.clientWidth, waiting = 0;
    new ResizeObserver(() => {
      if (node.clientWidth === width || matchMedia("print").matches) return;
      width = node.clientWidth;
      clearTimeout(waiting);
      waiting = setTimeout(draw, 80);
    }).observe(node);
  };

  // The frame's own: light or dark, copying, printing with everything open.
  const page = document.documentElement;
  byId("theme").addEventListener("click", () => {
    const dark = page.dataset.theme ? page.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    page.dataset.theme = dark ? "light" : "dark";
  });
  document.querySelectorAll("[data-copy]").forEach(button => button.addEventListener("click", async () => {
    const source = byId(button.dataset.copy);
    let done = true;
    try { await navigator.clipboard.writeText(source.textContent); } catch {
      const range = document.createRange();
      range.selectNodeContents(source);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "Copied" : "Selected";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }));
  let closed = [];
  addEventListener("beforeprint", () => { closed = [...document.querySelectorAll("details:not([open])")]; closed.forEach(one => { one.open = true; }); });
  addEventListener("afterprint", () => { closed.forEach(one => { one.open = false; }); });

  return { data, el, svg, byId, swatch, known, fixed, signed, span, percent, nearest, distinct, told, digitsFor, ticks, axis, headName, placeOf, ranked,
    plot, grid, key, stroke, ramp, headMap, cellSize, folds, headTable, select, pick, follow, foot, showTip, hideTip, resized, watch: watch => watchers.push(watch), get picked() { return picked; } };
})();

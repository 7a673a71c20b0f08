"use strict";
/* The page of a look at heads: small maps of all, then the profiles, the map and the text of the chosen one. */
(() => {
  const { data, el, svg, byId, known, swatch, ticks, plot, grid, key, stroke, ramp, select, showTip, hideTip, resized } = headlab;
  const { heads, tokens } = data, n = tokens.length;
  const BLUE = "var(--c0)", GREY = "var(--grey)";
  const now = { head: 0, ratio: false, log: false, shade: "root", mode: "gives", token: n - 1, held: false };

  const number = (value, digits = 4) => known(value) ? String(+value.toPrecision(digits)).replace("-", "\u2212") : "\u2013";
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

  // Tokens. Whatever cannot be seen in one gets a sign, or its number.
  const SIGNS = { " ": "\u2423", "\n": "\u21b5", "\t": "\u21e5" };
  const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Z}]/gu;
  const sign = letter => SIGNS[letter] || `\u27e8U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
  const visible = text => text === "" ? "\u2205" : text.replace(UNSEEN, sign);
  // In running text a space beside letters stays one, and a new line breaks it.
  const inText = text => (text.trim() === "" ? visible(text) : text.replace(UNSEEN, letter => letter === " " ? letter : sign(letter))).replaceAll("\u21b5", "\u21b5\n");
  const named = (place, says) => el("div", {}, el("b", { class: "token" }, visible(tokens[place])), el("span", { class: "soft" }, ` ${says} ${place}`));

  // Weights of the chosen head. What a query may look at starts at its reach: 0, or where its window does.
  const weight = (head, query, key) => data.maps[head][query][key] ?? 0;
  const uniform = (head, query, key) => { const first = data.reach[head][query]; return key >= first && key <= query ? 1 / (query - first + 1) : 0; };
  const times = (value, even) => even > 0 ? `${number(value / even, 3)} times` : null;
  const weightRows = (query, key) => {
    const value = weight(now.head, query, key), even = uniform(now.head, query, key);
    return [named(query, "query"), el("div", { class: "soft" }, "gives"), named(key, "key"),
      el("div", { class: "top" }, "weight ", el("b", { data: { of: "weight" } }, number(value))),
      el("div", { class: "soft" }, "uniform ", el("span", { data: { of: "uniform" } }, even ? number(even) : "0, out of its window"), times(value, even) && `, ${times(value, even)} that`)];
  };

  // Shades: from -1 to 1. Below 0 is less than uniform.
  const MOST = 4; // doublings
  const SHADES = {
    root: ["square root of weight", value => Math.sqrt(value)],
    weight: ["weight", value => value],
    ratio: ["weight / uniform", (value, even) => even ? clamp(Math.log2(value / even) / MOST, -1, 1) : 0],
  };
  const shade = (head, query, key) => SHADES[now.shade][1](weight(head, query, key), uniform(head, query, key));
  const probes = ["--pos", "--neg"].map(name => document.body.appendChild(el("i", { hidden: true, style: { color: `var(${name})` } })));
  function paint(canvas, head) {
    const pen = canvas.getContext("2d"), picture = pen.createImageData(n, n);
    const [pos, neg] = probes.map(probe => getComputedStyle(probe).color.match(/\d+/g).map(Number));
    for (let query = 0; query < n; query++) for (let key = 0; key <= query; key++) {
      const level = shade(head, query, key);
      picture.data.set([...(level < 0 ? neg : pos).slice(0, 3), Math.round(255 * Math.abs(level))], 4 * (query * n + key));
    }
    pen.putImageData(picture, 0, 0);
  }

  // 1. The choice of a head, and small maps of all.
  const buttons = heads.map((name, head) => el("button", { type: "button", data: { head: name }, click: () => choose(head) }, name));
  const small = heads.map((name, head) => el("button", { type: "button", data: { head: name }, click: () => choose(head) },
    el("canvas", { width: n, height: n, "aria-hidden": "true" }), name));
  byId("choose").append(...buttons);
  byId("small").append(...small);
  const STEPS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
  for (const list of [buttons, small]) list[0].parentNode.addEventListener("keydown", event => {
    if (!STEPS[event.key]) return;
    event.preventDefault();
    choose(clamp(now.head + STEPS[event.key], 0, heads.length - 1));
    list[now.head].focus();
  });
  function choose(head, quiet) {
    now.head = head;
    if (!quiet) try { history.replaceState(null, "", `#head=${heads[head]}`); } catch { /* an address that may not change */ }
    for (const list of [buttons, small]) list.forEach((button, i) => {
      button.setAttribute("aria-pressed", String(i === head));
      button.setAttribute("tabindex", i === head ? 0 : -1);
    });
    document.querySelectorAll("[data-says=head]").forEach(one => { one.textContent = heads[head]; });
    drawProfiles(); drawMap(); shadeText();
  }
  const read = () => { const head = heads.indexOf(location.hash.replace(/^#head=/, "")); if (head >= 0) choose(head, true); };

  // 2. Profiles.
  const AXES = { received: "weight", given: "weight", entropy: "nats", first: "weight", distance: "weight" };
  const names = Object.keys(data.profiles);
  const check = (text, name) => el("label", {}, el("input", { type: "checkbox", id: name, change: event => { now[name] = event.target.checked; drawLegend(); drawProfiles(); } }), text);
  byId("profile-controls").append(check("observed / uniform", "ratio"), check("log scale", "log"));
  function drawLegend() {
    byId("profile-legend").replaceChildren(...[
      key([stroke(BLUE)], data.prompts > 1 ? "observed, mean over prompts" : "observed"),
      data.prompts > 1 && key([svg("rect", { class: "band", width: 26, height: 12, style: { "--c": BLUE } })], "95 % interval over prompts"),
      key([svg("line", { class: "random", x1: 0, x2: 26, y1: 6, y2: 6 })], now.ratio ? "uniform, here 1" : "uniform"),
    ].filter(Boolean));
  }
  // The most that there can be: 1 of a weight, of entropy what looking evenly has.
  const bound = name => name === "entropy" ? data.profiles.entropy.flatMap(one => one.uniform.filter(known)).reduce((a, b) => Math.max(a, b), 0) : 1;
  const over = (values, by) => values.map((value, i) => known(value) && by[i] > 0 ? value / by[i] : null);
  const LOG_STEPS = [[1], [1, 3], [1, 2, 5]];
  function logAxis(values) {
    const there = values.filter(value => value > 0), floor = there.reduce((a, b) => Math.min(a, b), Infinity) / 1.5, top = there.reduce((a, b) => Math.max(a, b), 0) * 1.3;
    const decades = Math.log10(top / floor), steps = LOG_STEPS[decades > 2.5 ? 0 : decades > 1.2 ? 1 : 2], list = [];
    for (let ten = Math.floor(Math.log10(floor)); ten <= Math.log10(top); ten++) for (const step of steps) {
      const at = step * 10 ** ten;
      if (at >= floor && at <= top) list.push(Math.log10(at));
    }
    return { min: Math.log10(floor), max: Math.log10(top), ticks: list, show: value => number(10 ** value, 1) };
  }
  function drawProfiles() {
    grid(byId("profile-grid"), { rows: [{ name: heads[now.head], data: { head: heads[now.head] } }], columns: names.map(name => ({ name: data.titles[name], data: { statistic: name }, of: name })),
      shape: .62, low: 180, high: 240, row: () => null, at: (_, column) => data.profiles[column.of][now.head], tile: (own, { column, width, height, first }) => {
        const name = column.of, xs = own.mean.map((_, i) => i), last = own.mean.findLastIndex(known);
        const by = now.ratio ? own.uniform : own.mean.map(() => 1);
        const [mean, even] = [own.mean, own.uniform].map(values => over(values, by));
        const [low, high] = now.ratio ? [own.ratio_low, own.ratio_high] : [own.low, own.high];
        const shown = [...mean, ...even].filter(known), most = shown.reduce((a, b) => Math.max(a, b), -Infinity);
        const whole = !now.ratio && !["received", "distance"].includes(name), top = (whole ? bound(name) : now.ratio ? most * 1.1 : Math.min(1, most * 1.15)) * 1.02 || 1;
        const list = ticks(0, top, 4), y = now.log && shown.some(value => value > 0) ? logAxis(shown) : { min: 0, max: top, ticks: list, show: value => number(value) };
        const level = value => !known(value) ? null : !now.log ? value : value > 0 ? Math.log10(value) : y.min - 1;
        const what = name === "distance" ? "distance" : "position";
        const chart = plot({ width, height, step: 1, label: `${data.titles[name]}, ${heads[now.head]}, by ${what}. Arrow keys tell the numbers.`,
          x: { max: Math.max(1, last), ticks: ticks(0, Math.max(1, last), 5).filter(Number.isInteger), snap: Math.round, label: what }, y: { ...y, label: now.ratio ? "times uniform" : first || name === "entropy" ? AXES[name] : "" },
          move: (i, clientX, clientY) => {
            const token = name === "distance" ? undefined : data.shown[i];
            showTip(clientX, clientY, [
              el("div", { class: "top" }, `${what} ${i}`, token !== undefined && el("span", {}, " ", el("b", { class: "token" }, visible(token)))),
              el("div", {}, swatch(BLUE), "observed ", el("b", { data: { of: "mean" } }, number(own.mean[i]))),
              known(own.low[i]) && el("div", { class: "soft" }, "95 % interval ", el("span", { data: { of: "interval" } }, `${number(own.low[i])} to ${number(own.high[i])}`)),
              el("div", {}, swatch(GREY), "uniform ", el("b", { data: { of: "uniform" } }, number(own.uniform[i]))),
              own.uniform[i] > 0 && el("div", { class: "soft" }, "observed / uniform ", el("span", { data: { of: "ratio" } }, number(own.mean[i] / own.uniform[i], 3)), known(own.ratio_low[i]) && ` (${number(own.ratio_low[i], 3)} to ${number(own.ratio_high[i], 3)})`),
              el("div", { class: "soft" }, `n = ${data.reached[name][i]} of ${data.prompts}`),
            ].filter(Boolean));
            return [[i, level(even[i]), GREY], [i, level(mean[i]), BLUE]].filter(([, at]) => known(at));
          } });
        chart.band(xs, low.map(value => level(known(value) ? Math.max(0, value) : null)), high.map(level), "band", { "--c": BLUE });
        chart.line(xs, even.map(level), "random", {});
        chart.line(xs, mean.map(level), "line thin", { "--c": BLUE });
        return chart.root;
      } });
  }

  // 3. The map: below the diagonal. Right of it, where nothing is, stand the tokens: each at the end of its row and above its column.
  const LETTERS = 12, LEFT = 44, BELOW = 34;
  let cross = () => {};
  function drawMap() {
    const room = byId("look").clientWidth, across = room > 800 ? Math.min(640, room * .55) : room;
    const wordy = (across - LEFT - 84) / n >= 11, right = wordy ? 84 : 6;
    const fits = (across - LEFT - right) / n, cell = fits < 3 ? fits : Math.min(28, Math.floor(fits)), size = cell * n;
    const canvas = el("canvas", { id: "map-canvas", width: n, height: n, tabindex: 0, role: "img", style: { left: `${LEFT}px`, top: "0px", width: `${size}px`, height: `${size}px` },
      "aria-label": `Attention map of ${heads[now.head]}: ${n} queries from top to bottom, ${n} keys from left to right. Arrow keys tell the weights.` });
    paint(canvas, now.head);
    const marks = svg("g", {}), words = wordy ? tokens.map((token, i) => {
      const letters = [...visible(token)];
      return svg("text", { x: (i + 1) * cell + 5, y: (i + .5) * cell + 4 }, letters.length > LETTERS ? `${letters.slice(0, LETTERS - 1).join("")}\u2026` : letters.join(""));
    }) : [];
    const numbers = ticks(0, n - 1, Math.min(8, size / 45)).filter(Number.isInteger);
    const over = svg("svg", { width: LEFT + size + right, height: size + BELOW, "aria-hidden": "true" }, svg("g", { transform: `translate(${LEFT},0)` },
      svg("path", { class: "edge", d: `M0 0V${size}H${size}` }), ...words,
      ...numbers.flatMap(i => [svg("text", { x: -6, y: (i + .5) * cell + 4, "text-anchor": "end" }, i), svg("text", { x: (i + .5) * cell, y: size + 14, "text-anchor": "middle" }, i)]),
      svg("text", { x: size, y: size + 30, "text-anchor": "end" }, "key (looked at)"), svg("text", { transform: `translate(-34,${size / 2}) rotate(-90)`, "text-anchor": "middle" }, "query (looks)"), marks));
    cross = (query, key) => {
      const has = value => value !== null;
      marks.replaceChildren(...[
        has(query) && svg("rect", { class: "over", x: 0, y: query * cell, width: (query + 1) * cell, height: cell }),
        has(key) && svg("rect", { class: "over", x: key * cell, y: key * cell, width: cell, height: size - key * cell }),
        has(query) && has(key) && svg("rect", { class: "cell", x: key * cell - .5, y: query * cell - .5, width: cell + 1, height: cell + 1 }),
      ].filter(Boolean));
      words.forEach((word, i) => word.setAttribute("class", i === query || i === key ? "on" : ""));
    };
    let at = [n - 1, 0];
    const tell = (query, key, x, y) => {
      at = [query, key];
      if (!now.held) point(now.mode === "gives" ? query : key);
      cross(query, key);
      showTip(x, y, weightRows(query, key));
    };
    const quiet = () => { hideTip(); crossToken(); };
    const pointed = event => {
      const box = canvas.getBoundingClientRect();
      const [query, key] = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width].map(share => clamp(Math.floor(share * n), 0, n - 1));
      if (key > query) quiet(); else tell(query, key, event.clientX, event.clientY);
    };
    canvas.addEventListener("pointermove", pointed);
    canvas.addEventListener("pointerdown", pointed);
    canvas.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") quiet(); });
    canvas.addEventListener("blur", quiet);
    canvas.addEventListener("keydown", event => {
      const [down, along] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] || [0, 0];
      const query = clamp(at[0] + down, 0, n - 1), key = clamp(at[1] + along, 0, query);
      if (!down && !along) return;
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      tell(query, key, box.left + (key + 1) * cell, box.top + (query + 1) * cell);
    });
    byId("map").replaceChildren(el("div", { class: "triangle" }, canvas, over));
    crossToken();
  }
  const crossToken = () => cross(now.mode === "gives" ? now.token : null, now.mode === "gives" ? null : now.token);

  // 4. The text: a token is pointed at, and the others are shaded by what it gives them, or they give it.
  const MODES = { gives: "looks at", receives: "is looked at by" };
  const pair = (place, other) => now.mode === "gives" ? [place, other] : [other, place];
  const spans = tokens.map((token, place) => el("span", { role: "button", tabindex: -1, class: token.trim() === "" && "blank", "aria-label": `${place}: ${visible(token)}`, data: { place } }, inText(token)));
  byId("text").append(...spans);
  const placeOf = event => { const span = event.target.closest?.("#text span"); return span ? +span.dataset.place : null; };
  function point(place) {
    if (place === now.token) return;
    now.token = place;
    shadeText();
  }
  function hold(place) {
    now.held = !(now.held && now.token === place);
    now.token = place;
    hideTip();
    shadeText();
  }
  function passed(event, x, y) {
    const place = placeOf(event);
    if (place === null) return;
    if (!now.held) { point(place); return; }
    const [query, key] = pair(now.token, place);
    if (key > query) hideTip(); else { cross(query, key); showTip(x, y, weightRows(query, key)); }
  }
  byId("text").addEventListener("pointerover", event => passed(event, event.clientX, event.clientY));
  byId("text").addEventListener("pointerleave", () => { hideTip(); crossToken(); });
  byId("text").addEventListener("focusin", event => { const box = event.target.getBoundingClientRect(); if (event.target.matches(":focus-visible")) passed(event, box.right, box.bottom); });
  byId("text").addEventListener("focusout", hideTip);
  byId("text").addEventListener("click", event => { const place = placeOf(event); if (place !== null) hold(place); });
  byId("text").addEventListener("keydown", event => {
    const place = placeOf(event);
    if (place === null) return;
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); hold(place); return; }
    const next = spans[place + (STEPS[event.key] || 0)];
    if (!STEPS[event.key] || !next) return;
    event.preventDefault();
    rove(next);
    next.focus();
  });
  document.addEventListener("keydown", event => { if (event.key === "Escape" && now.held) hold(now.token); });
  const rove = span => spans.forEach(one => one.setAttribute("tabindex", one === span ? 0 : -1));
  rove(spans[n - 1]);
  function shadeText() {
    spans.forEach((span, place) => {
      const [query, key] = pair(now.token, place), level = key > query ? 0 : shade(now.head, query, key);
      span.style.backgroundColor = level ? `color-mix(in srgb, var(${level < 0 ? "--neg" : "--pos"}) ${(60 * Math.abs(level)).toFixed(1)}%, transparent)` : "";
      span.classList.toggle("on", place === now.token);
      span.setAttribute("aria-pressed", String(now.held && place === now.token));
    });
    crossToken();
    const partners = tokens.map((_, place) => [place, ...pair(now.token, place)]).filter(([, query, key]) => key <= query)
      .map(([place, query, key]) => ({ place, value: weight(now.head, query, key), even: uniform(now.head, query, key) }));
    partners.sort((a, b) => b.value - a.value || a.place - b.place);
    byId("partners").replaceChildren(el("div", { class: "scroll" }, el("table", { class: "partners", data: { place: now.token } },
      el("thead", {}, el("tr", {}, el("th", {}, el("b", { class: "token" }, visible(tokens[now.token])), ` (${now.token}) ${MODES[now.mode]}${now.held ? ", held" : ""}`), ["weight", "uniform", "ratio"].map(text => el("th", { class: "n" }, text)))),
      el("tbody", {}, partners.slice(0, 5).map(({ place, value, even }) => el("tr", { data: { place } },
        el("td", {}, el("b", { class: "token" }, visible(tokens[place])), ` (${place}${place === now.token ? ", itself" : ""})`), [value, even].map(one => el("td", { class: "n" }, number(one, 3))), el("td", { class: "n" }, even ? number(value / even, 3) : "\u2013")))))));
  }

  function drawControls() {
    byId("look-controls").replaceChildren(
      el("span", { class: "two", role: "group", "aria-label": "A token" }, Object.entries(MODES).map(([name, text]) =>
        el("button", { type: "button", data: { mode: name }, "aria-pressed": String(now.mode === name), click: event => {
          now.mode = name;
          event.target.parentNode.querySelectorAll("button").forEach(one => one.setAttribute("aria-pressed", String(one === event.target)));
          shadeText();
        } }, text))),
      select("shade", Object.entries(SHADES).map(([name, [text]]) => [name, text]), now.shade, value => { now.shade = value; drawShades(); }));
    byId("look-controls").querySelector("select").id = "shade";
  }
  function drawShades() {
    small.forEach((button, head) => paint(button.querySelector("canvas"), head));
    const least = 2 ** MOST;
    byId("shade-legend").replaceChildren(...(now.shade === "ratio"
      ? [el("span", { class: "scale" }, `1/${least} or less`, el("i"), `${least} times uniform or more`)]
      : [ramp("var(--pos)", "0", "1"), el("span", {}, now.shade === "root" ? "weight, shaded by its square root" : "weight")]));
    drawMap(); shadeText();
  }

  drawControls(); drawLegend(); choose(0, true); drawShades(); read();
  addEventListener("hashchange", read);
  resized(byId("profiles"), () => { drawProfiles(); drawMap(); });
  // Canvases do not follow the colours of the page by themselves.
  new MutationObserver(drawShades).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", drawShades);
})();

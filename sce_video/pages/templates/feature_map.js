"use strict";
/* A map of features: a scattergl plot whose hover shows the name and plays the clip. Needs Plotly.

   featureMap(element, data) draws into the element, in place of what is there, and returns
   {highlight(i), show(indices)}:
   highlight marks a point (null: none), show leaves only some points (null: all).
   data, arrays with an entry for each point:
     x, y          coordinates, or projections: {name: {x, y}}, among which buttons switch
     name          shown on hover
     label, group  optional: class and folder, which colours tell apart (null: none)
     clip          data: URI or URL of an image, an animation or a video; null: the name only
     onclick       optional function of the index of a point that is clicked, or Enter
     media         optional, "video" where URLs of videos have no extension  */
function featureMap(element, data) {
  const COLOURS = [0, 1, 2, 3, 4, 5, 7].map((k) => `--c${k}`);  // of theme.css
  const SYMBOLS = [["circle", "●"], ["square", "■"], ["triangle-up", "▲"], ["diamond", "◆"]];
  const MAX_CATEGORIES = 28;
  const GREY = "--c6";
  const TITLES = { label: "label", group: "folder" };
  const count = data.name.length;
  const planes = data.projections || { map: { x: data.x, y: data.y } };
  const keys = ["label", "group"].filter((key) => data[key] && data[key].some((v) => v !== null));
  const chosen = element.dataset.plane;  // before the map was drawn again
  const state = { plane: chosen in planes ? chosen : Object.keys(planes)[0], key: keys[0] || null, hidden: new Set(),
    shown: null, current: null, marked: null };
  const reduced = matchMedia("(prefers-reduced-motion: reduce)");
  const touch = matchMedia("(hover: none), (pointer: coarse)");

  const make = (tag, className, parent, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };

  element.removeMap?.();
  element.replaceChildren();
  element.classList.add("feature-map");
  const controls = make("div", "map-controls", element);
  const frame = make("div", "map-frame", element);
  const plot = make("div", "map-plot", frame);
  const ring = make("div", "map-ring", frame);
  const card = make("div", "map-card", frame);
  const legend = make("div", "map-legend", element);
  ring.hidden = card.hidden = true;
  card.setAttribute("aria-live", "polite");
  frame.tabIndex = 0;
  frame.setAttribute("role", "application");
  frame.setAttribute("aria-label", `Map of ${count} points. Arrow keys go to the next point`
    + (data.onclick ? ", Enter opens it." : "."));

  // -- categories ---------------------------------------------------------------------------

  function categories() {
    const members = new Map();
    for (let i = 0; i < count; i++) {
      const value = state.key ? data[state.key][i] : null;
      if (!members.has(value)) members.set(value, []);
      members.get(value).push(i);
    }
    const none = members.get(null);
    members.delete(null);
    const bySize = [...members].sort((a, b) => b[1].length - a[1].length);
    const own = bySize.slice(0, MAX_CATEGORIES);
    const rest = bySize.slice(MAX_CATEGORIES);
    own.sort((a, b) => String(a[0]).localeCompare(String(b[0]), undefined, { numeric: true }));
    const found = own.map(([name, indices], k) => ({ name: String(name), indices,
      colour: COLOURS[k % COLOURS.length], symbol: SYMBOLS[k % SYMBOLS.length] }));
    if (rest.length) {
      found.push({ name: `${rest.length} others`, indices: rest.flatMap((one) => one[1]),
        colour: GREY, symbol: SYMBOLS[0] });
    }
    if (none) {
      found.push({ name: state.key ? `no ${TITLES[state.key]}` : "", indices: none,
        colour: state.key ? GREY : COLOURS[0], symbol: SYMBOLS[0] });
    }
    return found;
  }

  const visible = (category) => !state.hidden.has(category.name);
  const some = (data.clip || []).some((clip) => clip) && !(data.clip || []).every((clip) => clip);

  // -- drawing ------------------------------------------------------------------------------

  function hasWebGL() {
    try { return !!document.createElement("canvas").getContext("webgl"); } catch { return false; }
  }
  const kind = hasWebGL() ? "scattergl" : "scatter";

  function draw() {
    const style = getComputedStyle(element);
    const colour = (name) => style.getPropertyValue(name).trim() || "#888888";
    const ink = colour("--ink"), line = colour("--line");
    const { x, y } = planes[state.plane];
    const size = count > 5000 ? 4 : count > 500 ? 6 : 9;
    const order = categories().filter(visible);
    order.sort((a, b) => (b.colour === GREY) - (a.colour === GREY));  // grey below the others
    const traces = order.map((category) => {
      const kept = state.shown ? category.indices.filter((i) => state.shown.has(i))
        : category.indices;
      return { type: kind, mode: "markers", name: category.name, hoverinfo: "none",
        x: kept.map((i) => x[i]), y: kept.map((i) => y[i]), customdata: kept,
        marker: { color: colour(category.colour), symbol: category.symbol[0], opacity: 0.85,
          size: some ? kept.map((i) => (data.clip[i] ? Math.max(size, 8) : size)) : size,
          line: { color: ink, width: some ? kept.map((i) => (data.clip[i] ? 1.2 : 0)) : 0 } } };
    });
    const axis = { showticklabels: false, zeroline: false, gridcolor: line, title: { text: "" },
      ticks: "" };
    const layout = { showlegend: false, hovermode: "closest", hoverdistance: 24,
      dragmode: touch.matches ? false : "zoom", margin: { l: 8, r: 8, t: 8, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: ink },
      xaxis: axis, yaxis: { ...axis, scaleanchor: "x" },
      uirevision: state.plane };
    // Named one by one: Plotly's default has a button that uploads the chart.
    const config = { responsive: true, displaylogo: false, doubleClick: touch.matches ? false : "reset",
      displayModeBar: touch.matches ? false : "hover",
      modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
    return Plotly.react(plot, traces, layout, config);
  }

  function pixel(i) {
    const { xaxis, yaxis } = plot._fullLayout;
    const { x, y } = planes[state.plane];
    return [xaxis._offset + xaxis.l2p(x[i]), yaxis._offset + yaxis.l2p(y[i])];
  }

  function placeRing() {
    ring.hidden = state.marked === null || !plot._fullLayout;
    if (ring.hidden) return;
    const [left, top] = pixel(state.marked);
    ring.hidden = !(left >= 0 && top >= 0 && left <= plot.clientWidth && top <= plot.clientHeight);
    ring.style.left = `${left}px`;
    ring.style.top = `${top}px`;
  }

  // -- the card of a point ------------------------------------------------------------------

  function media(url) {
    if (data.media === "video" || /^data:video\/|\.(mp4|webm|m4v|mov)([?#]|$)/i.test(url)) {
      const video = make("video", "map-clip");
      video.muted = video.loop = video.playsInline = true;
      video.autoplay = !reduced.matches;
      video.src = url;
      return video;
    }
    const image = make("img", "map-clip");
    image.alt = "";
    image.src = url;
    if (!reduced.matches) return image;
    const still = make("canvas", "map-clip");  // Shows the first frame of an animation.
    image.decode().then(() => {
      still.width = image.naturalWidth;
      still.height = image.naturalHeight;
      still.getContext("2d").drawImage(image, 0, 0);
    }).catch(() => still.remove());
    return still;
  }

  function showCard(i) {
    if (state.current !== i) {
      state.current = i;
      card.replaceChildren();
      const url = data.clip && data.clip[i];
      if (url) {
        const clip = media(url);
        clip.addEventListener("error", () => clip.replaceWith(
          make("span", "map-fact", null, "the clip cannot be played")));
        for (const event of ["load", "loadeddata"]) clip.addEventListener(event, () => place(i));
        card.append(clip);
      }
      make("b", "map-name", card, data.name[i]);
      const facts = keys.map((key) => data[key][i]).filter((value) => value !== null);
      if (facts.length) make("span", "map-fact", card, [...new Set(facts)].join(" · "));
    }
    card.hidden = false;
    place(i);
  }

  function place(i) {
    if (state.current !== i || card.hidden) return;
    const [left, top] = pixel(i);
    const width = card.offsetWidth, height = card.offsetHeight;
    const above = top - height - 14;
    card.style.left = `${Math.max(0, Math.min(left - width / 2, frame.clientWidth - width))}px`;
    card.style.top = `${above >= 0 ? above : Math.min(top + 14, frame.clientHeight - 20)}px`;
  }

  function hideCard() {
    state.current = null;
    card.hidden = true;
    card.replaceChildren();
  }

  // -- keys ---------------------------------------------------------------------------------

  const DIRECTIONS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  function drawn() {
    return categories().filter(visible).flatMap((category) => category.indices)
      .filter((i) => !state.shown || state.shown.has(i));
  }

  function next(direction) {
    const all = drawn();
    if (state.marked === null) {
      return all.find((i) => data.clip && data.clip[i]) ?? all[0] ?? null;
    }
    const [x0, y0] = pixel(state.marked);
    let best = null, least = Infinity;
    for (const i of all) {
      const [x, y] = pixel(i);
      const along = (x - x0) * direction[0] + (y - y0) * direction[1];
      const across = Math.abs((x - x0) * direction[1]) + Math.abs((y - y0) * direction[0]);
      if (i !== state.marked && along > 0 && along >= across && along + across < least) {
        least = along + across;
        best = i;
      }
    }
    return best;
  }

  frame.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { highlight(null); hideCard(); return; }
    if (event.key === "Enter" && state.marked !== null && data.onclick) {
      data.onclick(state.marked);
      return;
    }
    if (!(event.key in DIRECTIONS) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const found = next(DIRECTIONS[event.key]);
    if (found === null) return;
    highlight(found);
    showCard(found);
  });
  frame.addEventListener("blur", () => { if (!frame.matches(":hover")) hideCard(); });

  // -- controls and legend ------------------------------------------------------------------

  function choice(title, names, current, choose) {
    if (names.length < 2) return;
    const group = make("div", "map-choice", controls);
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", title);
    make("span", "map-choice-title", group, title);
    const buttons = names.map((name) => {
      const button = make("button", "", group, name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(name === current));
      button.addEventListener("click", () => {
        for (const one of buttons) one.setAttribute("aria-pressed", String(one === button));
        choose(name);
      });
      return button;
    });
  }

  function drawLegend() {
    legend.replaceChildren();
    const found = categories();
    if (found.length < 2) return;
    for (const category of found) {
      const button = make("button", "map-entry", legend);
      button.type = "button";
      button.setAttribute("aria-pressed", String(visible(category)));
      button.title = "show or hide";
      make("i", "", button, category.symbol[1]).style.color = `var(${category.colour})`;
      make("span", "", button, category.name);
      make("small", "", button, String(category.indices.length));
      button.addEventListener("click", () => {
        if (visible(category)) state.hidden.add(category.name);
        else state.hidden.delete(category.name);
        button.setAttribute("aria-pressed", String(visible(category)));
        hideCard();
        draw().then(placeRing);
      });
    }
  }

  function highlight(i) {
    state.marked = i;
    placeRing();
  }

  function show(indices) {
    state.shown = indices === null ? null : new Set(indices);
    hideCard();
    return draw().then(placeRing);
  }

  choice("projection", Object.keys(planes), state.plane, (name) => {
    state.plane = element.dataset.plane = name;
    hideCard();
    draw().then(placeRing);
  });
  choice("colour by", keys.map((key) => TITLES[key]), TITLES[state.key], (title) => {
    state.key = keys.find((key) => TITLES[key] === title);
    state.hidden.clear();
    drawLegend();
    draw().then(placeRing);
  });
  drawLegend();
  draw().then(() => {
    plot.on("plotly_hover", (event) => showCard(event.points[0].customdata));
    plot.on("plotly_unhover", hideCard);
    let last = { i: null, time: 0 };
    plot.on("plotly_click", (event) => {
      const i = event.points[0].customdata;
      const again = last.i === i && event.event.timeStamp - last.time < 500;
      showCard(i);
      if (again) return;  // A tap is reported twice.
      last = { i, time: event.event.timeStamp };
      if (data.onclick) data.onclick(i);
    });
    plot.on("plotly_afterplot", () => {
      placeRing();
      if (state.current !== null) place(state.current);
    });
    element.dataset.drawn = "true";
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  element.removeMap = () => {
    dark.removeEventListener("change", draw);
    Plotly.purge(plot);
  };
  return { highlight, show };
}

// Promise of Plotly, which the page contains as gzip.
window.plotlyReady = (async () => {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser is too old to draw the charts, because it lacks DecompressionStream");
  }
  const packed = document.getElementById("plotly-gzip").textContent.trim();
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.appendChild(script);
  return window.Plotly;
})();
window.plotlyReady.catch((error) => {
  for (const place of document.querySelectorAll(".plot")) place.textContent = String(error.message);
});

// Draws the charts of a page with Plotly. Zooming into one chart zooms all others.
function drawCharts(charts) {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const slotColour = (slot) => colour(`--c${slot % 8}`);
  const faded = (hex) => hex + "38";
  const plots = [];
  let zooming = false;

  const scale = (chart, values) => (chart.percent ? values.map((v) => (v === null ? null : 100 * v)) : values);
  const number = (chart) => (chart.percent ? ".1f" : ".4~g");
  const unit = (chart) => (chart.percent ? " %" : "");

  function curveTraces(chart, curve) {
    const line = slotColour(curve.slot);
    const y = scale(chart, curve.y);
    const traces = [];
    let hover = `%{y:${number(chart)}}${unit(chart)}`;
    let customdata;
    if (curve.low) {
      const low = scale(chart, curve.low), high = scale(chart, curve.high);
      const kept = curve.x.map((_, i) => i).filter((i) => low[i] !== null);
      const edge = { x: kept.map((i) => curve.x[i]), mode: "lines", line: { width: 0 }, hoverinfo: "skip", legendgroup: curve.label };
      traces.push({ ...edge, y: kept.map((i) => low[i]) });
      traces.push({ ...edge, y: kept.map((i) => high[i]), fill: "tonexty", fillcolor: faded(line) });
      customdata = curve.x.map((_, i) => [low[i], high[i]]);
      hover += ` <span style="color:${colour("--soft")}">(%{customdata[0]:${number(chart)}} to %{customdata[1]:${number(chart)}})</span>`;
    }
    traces.push({
      x: curve.x, y, customdata, name: curve.label, legendgroup: curve.label, type: "scatter",
      mode: curve.x.length > 40 ? "lines" : "lines+markers",
      line: { color: line, width: 1.8, dash: curve.slot >= 8 ? "dash" : "solid" }, marker: { size: 5, color: line },
      hovertemplate: `${hover}<extra>${escapeText(curve.label)}</extra>`,
    });
    return traces;
  }

  function escapeText(text) {
    return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function lineTrace(chart, line) {
    const xs = chart.curves.flatMap((curve) => [curve.x[0], curve.x[curve.x.length - 1]]);
    const y = chart.percent ? 100 * line.value : line.value;
    return {
      x: [Math.min(...xs), Math.max(...xs)], y: [y, y], mode: "lines", name: line.label, legendgroup: line.label,
      line: { color: colour("--soft"), width: 1.4, dash: "dash" }, hoverinfo: "skip",
    };
  }

  function layoutOf(chart) {
    const axis = {
      gridcolor: colour("--line"), linecolor: colour("--line"), zeroline: false, automargin: true,
      tickfont: { color: colour("--soft"), size: 11 }, ticks: "",
    };
    return {
      margin: { l: 44, r: 10, t: 6, b: 34 }, showlegend: false, hovermode: "x unified", dragmode: "zoom",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12, color: colour("--ink") },
      hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink"), size: 12 }, namelength: 28 },
      xaxis: {
        ...axis, range: chart.span, title: { text: "iteration", font: { size: 11, color: colour("--soft") }, standoff: 4 },
        unifiedhovertitle: { text: "iteration %{x:,.0f}" }, showspikes: true, spikemode: "across", spikethickness: 1,
        spikedash: "solid", spikecolor: colour("--soft"), nticks: 7,
      },
      yaxis: { ...axis, ticksuffix: unit(chart), fixedrange: true, nticks: 6, exponentformat: "power", minexponent: 6, separatethousands: true },
    };
  }

  function tracesOf(chart) {
    return [
      ...chart.lines.map((line) => lineTrace(chart, line)),
      ...chart.curves.flatMap((curve) => curveTraces(chart, curve)),
    ];
  }

  function zoomAll(source, change) {
    if (zooming) return;
    let wanted = null;
    if (change["xaxis.autorange"]) wanted = "all";
    else if ("xaxis.range[0]" in change) wanted = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (!wanted) return;
    zooming = true;
    const others = plots.filter((plot) => plot.element !== source || wanted === "all");
    Promise.all(others.map(({ element, chart }) =>
      Plotly.relayout(element, { "xaxis.range": wanted === "all" ? chart.span : wanted })
    )).finally(() => { zooming = false; });
  }

  function makeKey(chart, element) {
    const buttons = element.parentElement.querySelectorAll(".key button");
    for (const button of buttons) {
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") === "false";
        button.setAttribute("aria-pressed", String(shown));
        const indices = element.data.map((trace, i) => (trace.legendgroup === button.dataset.name ? i : -1)).filter((i) => i >= 0);
        Plotly.restyle(element, { visible: shown }, indices);
      });
    }
  }

  const settings = { displayModeBar: false, responsive: true, doubleClick: "reset" };
  async function draw(chart) {
    const element = document.getElementById(`plot-${chart.id}`);
    await Plotly.newPlot(element, tracesOf(chart), layoutOf(chart), settings);
    plots.push({ element, chart });
    element.on("plotly_relayout", (change) => zoomAll(element, change));
    element.on("plotly_doubleclick", () => zoomAll(element, { "xaxis.autorange": true }));
    makeKey(chart, element);
  }

  const all = charts.flatMap((chart) => chart.curves.flatMap((c) => [c.x[0], c.x[c.x.length - 1]]));
  const first = Math.min(...all), last = Math.max(...all);
  const room = 0.01 * (last - first) || 1;
  for (const chart of charts) chart.span = [first - room, last + room];

  return window.plotlyReady.then(async () => {
    for (const chart of charts) await draw(chart);
    document.body.dataset.charts = String(plots.length);
    const recolour = () => plots.forEach(({ element, chart }) => Plotly.react(element, tracesOf(chart), layoutOf(chart), settings));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  }, () => {});
}

// Draws the plots of the page from the data beside it, and ties them together: one legend, one time axis.
"use strict";
(() => {
  const plots = JSON.parse(document.getElementById("data").textContent);
  const font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: "#1b1f24" };
  const grid = { gridcolor: "#e9edf0", zeroline: false, linecolor: "#aab3bd", automargin: true };
  const drawn = [];

  function range(plot, type) {
    const ends = plot[type];
    return ends ? (type === "log" ? ends.map(Math.log10) : ends.slice()) : null;
  }

  function layout(plot) {
    const y = { ...grid, type: plot.stacked ? "category" : plot.type };
    const ends = range(plot, plot.type);
    if (ends) y.range = ends; else if (!plot.stacked) y.rangemode = "tozero";
    if (plot.type === "log") y.dtick = "D2";
    if (plot.stacked) y.autorange = "reversed";
    const x = { ...grid, title: { text: plot.axis, standoff: 8 }, rangemode: "tozero" };
    if (plot.names) x.type = "category";
    return {
      font, xaxis: x, yaxis: y,
      margin: { l: 8, r: 12, t: 26, b: 8 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      showlegend: false,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "#aab3bd", activecolor: "#1b1f24" },
      barmode: plot.stacked ? "stack" : "group", bargap: .25, dragmode: "zoom", hovermode: plot.timed ? "x unified" : "closest",
      hoverlabel: { font: { ...font, size: 11 } },
    };
  }

  const config = {
    // Nothing leaves the page: plotly's button that uploads a chart goes, and its address with it.
    displaylogo: false, responsive: true, showSendToCloud: false, plotlyServerURL: "",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  };

  // One time axis: zooming into one plot zooms all of them.
  let following = false;
  async function follow(source, event) {
    if (following || !source.timed) return;
    let change = null;
    if ("xaxis.range[0]" in event) change = { "xaxis.range": [event["xaxis.range[0]"], event["xaxis.range[1]"]] };
    else if (event["xaxis.autorange"]) change = { "xaxis.autorange": true };
    if (!change) return;
    following = true;
    try {
      for (const { plot, box } of drawn) if (plot.timed && plot !== source) await Plotly.relayout(box, change);
    } finally { following = false; }
  }

  // One legend: a method is hidden or shown in all plots.
  const entries = [...document.querySelectorAll(".legend button")];
  const shown = (entry) => entry.getAttribute("aria-pressed") === "true";
  function apply() {
    const visible = new Map(entries.map((entry) => [Number(entry.dataset.method), shown(entry)]));
    for (const { plot, box } of drawn) {
      const traces = plot.data.map((trace, i) => [trace.meta, i]).filter(([method]) => method !== undefined);
      if (!traces.length) continue;
      Plotly.restyle(box, { visible: traces.map(([method]) => visible.get(method)) }, traces.map(([, i]) => i));
    }
  }
  for (const entry of entries) {
    entry.addEventListener("click", () => { entry.setAttribute("aria-pressed", String(!shown(entry))); apply(); });
    entry.addEventListener("dblclick", () => {
      const alone = entries.every((other) => other === entry || !shown(other));
      for (const other of entries) other.setAttribute("aria-pressed", String(alone || other === entry));
      apply();
    });
  }

  const scales = [...document.querySelectorAll(".scale button")];
  for (const button of scales) button.addEventListener("click", () => {
    for (const other of scales) other.setAttribute("aria-pressed", String(other === button));
    const type = button.dataset.scale;
    for (const { plot, box } of drawn) {
      const ends = range(plot, type);
      if (ends) Plotly.relayout(box, { "yaxis.type": type, "yaxis.range": ends, "yaxis.dtick": type === "log" ? "D2" : null });
    }
  });

  for (const plot of plots) {
    const box = document.getElementById(`plot-${plot.id}`);
    if (!box) continue;
    if (plot.stacked) box.style.height = `${90 + 30 * plot.rows}px`;
    Plotly.newPlot(box, plot.data, layout(plot), config).then(() => {
      drawn.push({ plot, box });
      box.on("plotly_relayout", (event) => follow(plot, event));
      document.body.dataset.drawn = String(drawn.length);
    });
  }
})();

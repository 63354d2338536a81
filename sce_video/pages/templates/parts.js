"use strict";
// Draws the maps of a page once Plotly is there; data are in the <script> of each.
(async () => {
  const maps = document.querySelectorAll("[data-feature-map]");
  try {
    await window.plotlyReady;
    for (const map of maps) featureMap(map, JSON.parse(map.querySelector("script").textContent));
  } catch (error) {
    for (const map of maps) map.append(`The map cannot be drawn: ${error.message}`);
  }
})();

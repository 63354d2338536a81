"use strict";
// Draws the maps of a page when Plotly has loaded. The <script> in each map contains its data.
(async () => {
  const maps = document.querySelectorAll("[data-feature-map]");
  try {
    await window.plotlyReady;
    for (const map of maps) featureMap(map, JSON.parse(map.querySelector("script").textContent));
  } catch (error) {
    for (const map of maps) map.append(`The map cannot be drawn: ${error.message}`);
  }
})();

"use strict";
// Draws the maps of a page once Plotly is there; data are in the <script> of each.
(typeof plotlyReady === "undefined" ? Promise.resolve() : plotlyReady).then(() => {
  for (const element of document.querySelectorAll("[data-feature-map]")) {
    featureMap(element, JSON.parse(element.querySelector("script").textContent));
  }
});

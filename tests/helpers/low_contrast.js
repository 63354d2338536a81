// All visible text whose contrast with what lies behind it is lower than a number (WCAG 2.2), as
// "CONTRAST of TEXT, SELECTOR". Of a translucent surface over a picture the worst case counts.
least => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    const found = colour.match(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/);
    if (found) return [...found.slice(1, 4).map(Number), Number(found[4] ?? 1)];
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const luminance = (colour) =>
    colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4))
      .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => {
    const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = (node) => {
    const layers = [];
    for (let each = node; each; each = each.parentElement) {
      layers.push(rgba(getComputedStyle(each).backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const paper = dark ? [0, 0, 0] : [255, 255, 255];
    const translucent = layers[0][3] > 0 && layers[0][3] < 1;
    const bases = translucent ? [[0, 0, 0], [255, 255, 255]] : [paper];
    const used = translucent ? layers.slice(0, 1) : layers;
    return bases.map((base) => used.reduceRight((below, layer) => over(layer, below), base));
  };
  const low = [];
  const check = (node, text, colour) => {
    let alpha = 1;
    for (let each = node; each; each = each.parentElement) alpha *= Number(getComputedStyle(each).opacity);
    const [r, g, b, a] = rgba(colour);
    const found = Math.min(...behind(node).map((base) => contrast(over([r, g, b, a * alpha], base), base)));
    const name = `${node.tagName.toLowerCase()}${node.id && "#" + node.id}.${node.getAttribute("class") ?? ""}`;
    if (found < least) low.push(`${found.toFixed(2)} of ${JSON.stringify(text.trim().slice(0, 40))}, ${name}`);
  };
  for (const node of document.body.querySelectorAll("*")) {
    const box = node.getBoundingClientRect();
    const shown = node.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (!shown || box.width < 2 || box.height < 2 || node.closest(":disabled, script, style, option")) continue;
    const style = getComputedStyle(node);
    const texts = [...node.childNodes].filter((child) => child.nodeType === Node.TEXT_NODE);
    const text = texts.map((child) => child.data).join(" ");
    if (text.trim()) check(node, text, node instanceof SVGElement ? style.fill : style.color);
    if (node.matches("select, input:not([type=checkbox])") && (node.value || node.matches("select")))
      check(node, node.value || node.id, style.color);
    else if (node.placeholder) check(node, node.placeholder, getComputedStyle(node, "::placeholder").color);
  }
  return low;
}

import { FONT } from "./fitted";
import { drawAgain } from "./redraw";
import { box, escaped, HATCH, SvgContext, type Ids } from "./svg_context";

/** A picture as SVG text, and its size in CSS pixels. */
export interface Picture {
  svg: string;
  width: number;
  height: number;
}

const PAD = 8;
/** What is only there to be used or to be read aloud. */
const LEFT_OUT = "button, input, select, .unseen";

/**
 * A picture of parts of the page, one below the other, as tall as they are.
 *
 * Canvases are drawn again as shapes and text; of the rest text, grounds and borders are kept.
 */
export function pictureOf(parts: readonly Element[]): Picture {
  const ids = { next: 0 };
  const boxes = parts.map((part) => part.getBoundingClientRect());
  const left = Math.min(...boxes.map((one) => one.left)) - PAD;
  const width = Math.ceil(Math.max(...boxes.map((one) => one.right)) - left + PAD);
  let height = PAD;
  const drawn = parts.map((part, at) => {
    const above = height - boxes[at]!.top;
    height += boxes[at]!.height + PAD;
    return drawElement(part, { left: -left, top: above }, ids);
  });
  height = Math.ceil(height);
  const color = reader();
  const svg =
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" ` +
    `viewBox="0 0 ${width} ${height}" font-family="${escaped(FONT.replace(/^\S+ /, ""))}">` +
    `${hatchOf(color("lane"), color("line-strong"))}` +
    `<rect width="${width}" height="${height}" fill="${color("surface")}"/>${drawn.join("")}</svg>`;
  return { svg, width, height };
}

/** The same as a bitmap, with so many pixels for each of CSS. */
export async function bitmapOf({ svg, width, height }: Picture, ratio: number): Promise<Blob> {
  const image = new Image();
  const url = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
    if (!blob) throw new Error("The picture is too large for this browser; save it as SVG.");
    return blob;
  } finally {
    URL.revokeObjectURL(url);
  }
}

/** How far the page's places are from those of the picture, px. */
interface Shift {
  left: number;
  top: number;
}

function drawElement(element: Element, shift: Shift, ids: Ids): string {
  const style = getComputedStyle(element);
  if (style.display === "none" || style.visibility === "hidden" || element.matches(LEFT_OUT))
    return "";
  if (element instanceof HTMLCanvasElement) return drawCanvas(element, shift, ids);
  if (element instanceof SVGSVGElement) return drawSvg(element, shift);
  const inside = [...element.childNodes].map((node) => {
    if (node instanceof Element) return drawElement(node, shift, ids);
    return node instanceof Text ? drawText(node, style, shift) : "";
  });
  return drawGround(element, style, shift, ids) + inside.join("");
}

function placeOf(rect: DOMRect, { left, top }: Shift): string {
  return box(rect.left + left, rect.top + top, rect.width, rect.height);
}

/** A canvas may be larger than what is drawn on it: what is around it cuts it. */
function drawCanvas(canvas: HTMLCanvasElement, shift: Shift, ids: Ids): string {
  const [own, around] = [
    canvas.getBoundingClientRect(),
    canvas.parentElement!.getBoundingClientRect(),
  ];
  const right = Math.min(own.right, around.right);
  const bottom = Math.min(own.bottom, around.bottom);
  const place = new DOMRect(own.left, own.top, right - own.left, bottom - own.top);
  const recorded = {
    width: canvas.width,
    height: canvas.height,
    style: {},
    getContext: () => context,
  };
  const context = new SvgContext(recorded, ids);
  drawAgain(canvas, recorded as unknown as HTMLCanvasElement);
  return context.svg && `<svg${placeOf(place, shift)}>${context.svg}</svg>`;
}

const COPIED = ["fill", "stroke", "stroke-width", "opacity"];

/** Lines over the timeline, with the style that the page gives them. */
function drawSvg(svg: SVGSVGElement, shift: Shift): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const copies = copy.querySelectorAll<SVGElement>("path, line, circle, rect, text");
  svg.querySelectorAll("path, line, circle, rect, text").forEach((one, at) => {
    const style = getComputedStyle(one);
    for (const name of COPIED) copies[at]!.setAttribute(name, style.getPropertyValue(name));
    copies[at]!.removeAttribute("class");
  });
  const rect = svg.getBoundingClientRect();
  return `<svg${placeOf(rect, shift)} overflow="visible">${new XMLSerializer().serializeToString(copy)}</svg>`;
}

function drawGround(element: Element, style: CSSStyleDeclaration, shift: Shift, ids: Ids): string {
  const [ramp, fill] = groundOf(style, ids);
  const border = parseFloat(style.borderLeftWidth) && parseFloat(style.borderRightWidth);
  if (!fill && !border) return "";
  const line = border ? ` stroke="${style.borderLeftColor}" stroke-width="${border}"` : "";
  const place = placeOf(element.getBoundingClientRect(), shift);
  return `${ramp}<rect${place} fill="${fill || "none"}"${line}/>`;
}

/** What fills an element, and what has to be defined for it; nothing where it is clear. */
function groundOf(style: CSSStyleDeclaration, ids: Ids): [defined: string, fill: string] {
  const { backgroundImage: image, backgroundColor: color } = style;
  if (image.startsWith("repeating-linear-gradient")) return ["", `url(#${HATCH})`];
  if (image.startsWith("linear-gradient")) {
    const id = `ramp${ids.next++}`;
    const colors = image.match(/(?:rgba?|color)\([^)]*\)/g) ?? [];
    const stops = colors.map((one, at) => {
      return `<stop offset="${at / Math.max(colors.length - 1, 1)}" stop-color="${one}"/>`;
    });
    return [`<linearGradient id="${id}">${stops.join("")}</linearGradient>`, `url(#${id})`];
  }
  const clear = color === "transparent" || /^rgba\(.*, 0\)$/.test(color);
  return ["", clear ? "" : color];
}

/** A text in one line, cut where the page cuts it. */
function drawText(node: Text, style: CSSStyleDeclaration, shift: Shift): string {
  const range = document.createRange();
  range.selectNodeContents(node);
  const [rect] = range.getClientRects();
  if (!rect || !node.data.trim()) return "";
  const size = parseFloat(style.fontSize);
  const cut = style.overflowX === "visible" ? null : node.parentElement!.getBoundingClientRect();
  const origin = cut ?? new DOMRect(-shift.left, -shift.top);
  const [x, y] = [rect.left - origin.left, rect.top + rect.height / 2 + 0.35 * size - origin.top];
  const font = `font-size="${size}" font-weight="${style.fontWeight}" fill="${style.color}"`;
  const text = `<text xml:space="preserve" x="${x.toFixed(2)}" y="${y.toFixed(2)}" ${font}>${escaped(node.data.replace(/[ \t\n]+/g, " "))}</text>`;
  return cut ? `<svg${placeOf(cut, shift)}>${text}</svg>` : text;
}

function reader(): (name: string) => string {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(`--${name}`).trim();
}

function hatchOf(ground: string, line: string): string {
  return (
    `<defs><pattern id="${HATCH}" width="6" height="6" patternUnits="userSpaceOnUse">` +
    `<rect width="6" height="6" fill="${ground}"/>` +
    `<path d="M-1 1L1 -1M0 6L6 0M5 7L7 5" stroke="${line}" stroke-width="1.2"/></pattern></defs>`
  );
}

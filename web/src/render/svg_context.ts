/** The id of the pattern of idle time, which the picture around it defines. */
export const HATCH = "hatch";

/** What one picture shares: ids are counted through all of it. */
export interface Ids {
  next: number;
}

const STATE = [
  "fillStyle",
  "strokeStyle",
  "lineWidth",
  "globalAlpha",
  "font",
  "textBaseline",
] as const;
type State = Record<(typeof STATE)[number], unknown> & { groups: number };

/** What the drawing functions of this folder call of a canvas's context, written down as SVG. */
export class SvgContext {
  fillStyle: string | CanvasPattern = "#000";
  strokeStyle = "#000";
  lineWidth = 1;
  globalAlpha = 1;
  font = "12px sans-serif";
  textBaseline = "alphabetic";
  imageSmoothingEnabled = true;
  private readonly out: string[] = [];
  private readonly states: State[] = [];
  private path = "";

  constructor(
    readonly canvas: unknown,
    private readonly ids: Ids,
  ) {}

  get svg(): string {
    return this.out.join("");
  }

  save(): void {
    const state = Object.fromEntries(STATE.map((key) => [key, this[key]]));
    this.states.push({ ...state, groups: 0 } as State);
  }

  restore(): void {
    const state = this.states.pop();
    if (!state) return;
    this.out.push("</g>".repeat(state.groups));
    Object.assign(this, Object.fromEntries(STATE.map((key) => [key, state[key]])));
  }

  clip(): void {
    const state = this.states.at(-1);
    if (!state) return;
    const id = `clip${this.ids.next++}`;
    this.out.push(`<clipPath id="${id}"><path d="${this.path}"/></clipPath>`);
    this.out.push(`<g clip-path="url(#${id})">`);
    state.groups++;
  }

  beginPath(): void {
    this.path = "";
  }

  moveTo(x: number, y: number): void {
    this.path += `M${short(x)} ${short(y)}`;
  }

  lineTo(x: number, y: number): void {
    this.path += `L${short(x)} ${short(y)}`;
  }

  closePath(): void {
    this.path += "Z";
  }

  rect(x: number, y: number, width: number, height: number): void {
    this.path += `M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}Z`;
  }

  roundRect(x: number, y: number, width: number, height: number, radius: number): void {
    const r = Math.min(radius, width / 2, height / 2);
    const arc = (dx: number, dy: number): string =>
      `a${short(r)} ${short(r)} 0 0 1 ${short(dx)} ${short(dy)}`;
    const [across, down] = [short(width - 2 * r), short(height - 2 * r)];
    this.path += `M${short(x + r)} ${short(y)}h${across}${arc(r, r)}v${down}${arc(-r, r)}`;
    this.path += `h-${across}${arc(-r, -r)}v-${down}${arc(r, -r)}Z`;
  }

  fill(): void {
    this.out.push(`<path d="${this.path}"${this.filled()}/>`);
  }

  stroke(): void {
    this.out.push(`<path d="${this.path}"${this.stroked()}/>`);
  }

  fillRect(x: number, y: number, width: number, height: number): void {
    if (width > 0 && height > 0)
      this.out.push(`<rect${box(x, y, width, height)}${this.filled()}/>`);
  }

  strokeRect(x: number, y: number, width: number, height: number): void {
    this.out.push(`<rect${box(x, y, width, height)}${this.stroked()}/>`);
  }

  fillText(text: string, x: number, y: number): void {
    const size = Number(/(\d+(?:\.\d+)?)px/.exec(this.font)?.[1] ?? 12);
    const base = y + (this.textBaseline === "middle" ? 0.35 * size : 0);
    const at = `x="${short(x)}" y="${short(base)}" font-size="${size}"`;
    const kept = text.includes("  ") ? ' xml:space="preserve"' : "";
    this.out.push(`<text ${at}${kept}${this.filled()}>${escaped(text)}</text>`);
  }

  measureText(text: string): TextMetrics {
    const context = document.createElement("canvas").getContext("2d")!;
    context.font = this.font;
    return context.measureText(text);
  }

  createPattern(tile: HTMLCanvasElement, repeat: string): CanvasPattern | null {
    return document.createElement("canvas").getContext("2d")!.createPattern(tile, repeat);
  }

  /** What is finer than a pixel was added up to pixels: these stay an image. */
  drawImage(
    source: HTMLCanvasElement,
    left: number,
    top: number,
    across: number,
    down: number,
    ...[x, y, width, height]: [number, number, number, number]
  ): void {
    const part = document.createElement("canvas");
    [part.width, part.height] = [across, down];
    part.getContext("2d")!.drawImage(source, left, top, across, down, 0, 0, across, down);
    this.out.push(
      `<image${box(x, y, width, height)} preserveAspectRatio="none" ` +
        `style="image-rendering:pixelated" href="${part.toDataURL()}"/>`,
    );
  }

  /** Sizes are CSS pixels already, and nothing is there to be cleared. */
  setTransform(): void {}

  clearRect(): void {}

  private filled(): string {
    const color = typeof this.fillStyle === "string" ? this.fillStyle : `url(#${HATCH})`;
    return ` fill="${color}"${this.opacity()}`;
  }

  private stroked(): string {
    const color = `stroke="${this.strokeStyle}" stroke-width="${short(this.lineWidth)}"`;
    return ` fill="none" ${color}${this.opacity()}`;
  }

  private opacity(): string {
    return this.globalAlpha < 1 ? ` opacity="${short(this.globalAlpha)}"` : "";
  }
}

export function box(x: number, y: number, width: number, height: number): string {
  const [left, top, across, down] = [x, y, width, height].map(short);
  return ` x="${left}" y="${top}" width="${across}" height="${down}"`;
}

function short(value: number): number {
  return Math.round(value * 100) / 100;
}

const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

export function escaped(text: string): string {
  // XML has no way to write control characters.
  return text.replace(/[\u0000-\u001f]/g, " ").replace(/[&<>"]/g, (one) => ENTITIES[one]!);
}

/** The font of names on a canvas. */
export const FONT =
  '12px system-ui, -apple-system, "Segoe UI", Roboto, Ubuntu, Cantarell, sans-serif';

/** The same, smaller: of slices on tracks. */
export const FONT_SMALL = FONT.replace("12px", "11px");

/** Gives a canvas a pixel for each of the screen, and a context that is scaled to CSS pixels. */
export function fitted(
  canvas: HTMLCanvasElement,
  width: number,
  height: number,
  settings: CanvasRenderingContext2DSettings = {},
): CanvasRenderingContext2D {
  const ratio = devicePixelRatio;
  const across = Math.max(Math.round(width * ratio), 1);
  const down = Math.max(Math.round(height * ratio), 1);
  if (canvas.width !== across) canvas.width = across;
  if (canvas.height !== down) canvas.height = down;
  const context = canvas.getContext("2d", settings)!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

/**
 * Fills columns from one height to another; none where nothing is known.
 *
 * One outline around all columns next to each other: a path of a rectangle for each cost most of a
 * frame, as every edge goes through all lines of pixels.
 */
export function fillColumns(
  context: CanvasRenderingContext2D,
  bottom: Float64Array,
  top: Float64Array,
  pixel: number,
): void {
  context.beginPath();
  for (let at = 0; at < top.length; at++) {
    if (Number.isNaN(top[at]!)) continue;
    const from = at;
    while (at < top.length && !Number.isNaN(top[at]!)) at++;
    context.moveTo(from * pixel, top[from]!);
    for (let i = from; i < at; i++) step(context, top, i, 1, pixel);
    context.lineTo(at * pixel, bottom[at - 1]!);
    for (let i = at - 1; i >= from; i--) step(context, bottom, i, -1, pixel);
    context.closePath();
  }
  context.fill();
}

/** The far side of a column on the way to the next; level ground is left to what follows. */
function step(
  context: CanvasRenderingContext2D,
  heights: Float64Array,
  at: number,
  way: 1 | -1,
  pixel: number,
): void {
  const [y, next] = [heights[at]!, heights[at + way]];
  if (next === y) return;
  const x = (way > 0 ? at + 1 : at) * pixel;
  context.lineTo(x, y);
  if (next !== undefined && !Number.isNaN(next)) context.lineTo(x, next);
}

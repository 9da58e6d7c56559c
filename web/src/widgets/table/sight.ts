export const ROW_PX = 25;
const SPARE_ROWS = 12;
/** Tables up to this size are drawn whole, so that finding in the page works. */
const DRAWN_WHOLE = 300;

/** The rows to draw: those in sight and some around them. */
export function inSight(
  rows: number,
  scroll: number,
  height: number,
): { from: number; to: number } {
  if (rows <= DRAWN_WHOLE) return { from: 0, to: rows };
  const room = Math.ceil(height / ROW_PX) + 2 * SPARE_ROWS;
  const from = Math.min(Math.max(Math.floor(scroll / ROW_PX) - SPARE_ROWS, 0), rows - room);
  return { from: Math.max(from, 0), to: Math.min(from + room, rows) };
}

/** How many rows a key for a page moves by. */
export function pageOf(frame: HTMLElement): number {
  return Math.max(Math.floor(frame.clientHeight / ROW_PX) - 3, 1);
}

/** Scrolls as far as needed for a row to be between the headings and the totals. */
export function showRow(frame: HTMLElement, at: number): void {
  const above = frame.querySelector("thead")?.clientHeight ?? ROW_PX;
  const below = frame.querySelector("tfoot")?.clientHeight ?? 0;
  const top = above + at * ROW_PX;
  const { scrollTop, clientHeight } = frame;
  if (top < scrollTop + above || top + ROW_PX > scrollTop + clientHeight - below) {
    frame.scrollTop = top - clientHeight / 2;
  }
}

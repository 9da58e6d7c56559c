type Draw = (canvas: HTMLCanvasElement) => void;

const draws = new WeakMap<HTMLCanvasElement, Draw>();

/** Keeps how a canvas was drawn last, so that the same can be drawn elsewhere. */
export function drawnBy(canvas: HTMLCanvasElement, draw: Draw): void {
  draws.set(canvas, draw);
}

export function drawAgain(canvas: HTMLCanvasElement, other: HTMLCanvasElement): void {
  draws.get(canvas)?.(other);
}

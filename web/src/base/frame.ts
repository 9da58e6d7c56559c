/** Work before and after the next frame is painted. */

/** Measures the page once its frame begins, when all else is laid out; gives what cancels it. */
export function beforePaint(measure: () => void): () => void {
  const frame = requestAnimationFrame(measure);
  return () => cancelAnimationFrame(frame);
}

let next: Promise<void> | null = null;

/** Once what is drawn now is on screen, so that a request that can wait does not delay it. */
export function painted(): Promise<void> {
  return (next ??= new Promise((resolve) => {
    requestAnimationFrame(() =>
      setTimeout(() => {
        next = null;
        resolve();
      }),
    );
  }));
}

import { effect, signal } from "@preact/signals";

/** How many answers are on their way that somebody waits for. */
const awaited = signal(0);

/** So many more of them. */
export function count(by: number): void {
  awaited.value = awaited.peek() + by;
}

/** Counts some work as awaited until it is done. */
export async function awaiting<T>(work: Promise<T>): Promise<T> {
  count(1);
  try {
    return await work;
  } finally {
    count(-1);
  }
}

/** Once nobody has waited for anything, nor moved the view, for so long. */
export function atRest(ms: number): Promise<void> {
  return new Promise((resolve) => {
    let timer: ReturnType<typeof setTimeout>;
    const stop = effect(() => {
      clearTimeout(timer);
      if (awaited.value) return;
      timer = setTimeout(() => {
        stop();
        resolve();
      }, ms);
    });
  });
}

/** Work that is aborted as soon as somebody waits for something. */
export async function whileAtRest<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const controller = new AbortController();
  const stop = effect(() => {
    if (awaited.value) controller.abort();
  });
  try {
    return await work(controller.signal);
  } finally {
    stop();
  }
}

/** Marks an element from when something is asked for until the answer is drawn. */
export function markBusy(element: HTMLElement): void {
  const rest = (): void => {
    if (!awaited.peek()) delete element.dataset.busy;
  };
  effect(() => {
    if (awaited.value) element.dataset.busy = "";
    else requestAnimationFrame(() => setTimeout(rest));
  });
}

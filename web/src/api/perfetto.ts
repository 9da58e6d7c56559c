/** Handing raw events to the Perfetto UI, in a window of its own, by its postMessage protocol. */

export const ONLINE = "https://ui.perfetto.dev";
const PING_MS = 100;
const PATIENCE_MS = 60_000;

/** Where Perfetto's window is opened: a local copy's viewer route, else the site. */
export function perfettoUrl(local: string | null): string {
  return local === null ? ONLINE : `${local}#!/viewer`;
}

/**
 * Sends a trace to a Perfetto window once it answers.
 *
 * @param title shown as the trace's name.
 * @returns when it was sent.
 * @throws Error if the window does not answer within a minute, or is closed.
 * Source: perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui
 */
export async function sendToPerfetto(
  target: Window,
  origin: string,
  trace: Promise<unknown>,
  title: string,
): Promise<void> {
  const [buffer] = await Promise.all([encode(trace), answering(target, origin)]);
  const fileName = `${title.replace(/[^\w.-]+/g, "_")}.json`;
  target.postMessage({ perfetto: { buffer, title, fileName } }, origin);
}

async function encode(trace: Promise<unknown>): Promise<ArrayBuffer> {
  return new TextEncoder().encode(JSON.stringify(await trace)).buffer as ArrayBuffer;
}

function answering(target: Window, origin: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const begin = performance.now();
    const stop = (): void => {
      clearInterval(timer);
      removeEventListener("message", hear);
    };
    const hear = (event: MessageEvent): void => {
      if (event.source !== target || event.data !== "PONG") return;
      stop();
      resolve();
    };
    const timer = setInterval(() => {
      if (target.closed || performance.now() - begin > PATIENCE_MS) {
        stop();
        reject(new Error("Perfetto did not answer. Save the raw events and open the file there."));
      } else target.postMessage("PING", origin);
    }, PING_MS);
    addEventListener("message", hear);
  });
}

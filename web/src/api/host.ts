import type { Parameters } from "./request";
import type { Traces } from "./types";

/** What went wrong, as one line for the user; `status` as in HTTP, 0 where nothing answered. */
export class AskError extends Error {
  constructor(
    message: string,
    readonly status: number = 0,
  ) {
    super(message);
  }
}

/**
 * Where answers come from: a server, the file that the page lies in, or an editor.
 *
 * A host passes requests on and knows nothing of what they mean. A new one (an editor's webview over
 * postMessage) implements this and is named in `connect.ts`.
 */
export interface Host {
  /** A server's answers change while it reads; those of a file are all there. */
  readonly live: boolean;
  /** Sentences about what this host cannot answer, shown at the page's foot. */
  readonly leftOut: readonly string[];
  /** What-ifs that a file holds, changes one a line; a server predicts any. */
  readonly whatIfs: readonly string[];
  traces(): Promise<Traces>;
  /** Begin to read a trace that is closed. */
  open(trace: string): Promise<void>;
  /**
   * The answer to a request (see `requestKey`) about a trace, as plain data.
   *
   * @param later whether others may go first: nobody's click waits for it.
   * @param signal aborts it once its answer is no longer wanted.
   */
  ask(trace: string, request: string, later?: boolean, signal?: AbortSignal): Promise<unknown>;
  /** The page with its data as one file; missing where this is that file. */
  page?: (trace: string, of: Parameters) => Promise<Blob>;
}

import { AskError, type Host } from "./host";
import { requestKey, type Parameters } from "./request";
import type { Traces } from "./types";

/** `stepscope view`: the token is in a cookie, so a request is a plain fetch. */
export class HttpHost implements Host {
  readonly live = true;
  readonly leftOut: readonly string[] = [];
  readonly whatIfs: readonly string[] = [];

  constructor(private readonly base: string = "/api/traces") {}

  async traces(): Promise<Traces> {
    return (await fetchJson(this.base)) as Traces;
  }

  async open(trace: string): Promise<void> {
    await this.ask(trace, "open");
  }

  ask(
    trace: string,
    request: string,
    later = false,
    signal: AbortSignal | null = null,
  ): Promise<unknown> {
    const url = `${this.base}/${encodeURIComponent(trace)}/${request}`;
    return fetchJson(url, { priority: later ? "low" : "high", signal });
  }

  async page(trace: string, of: Parameters): Promise<Blob> {
    const url = `${this.base}/${encodeURIComponent(trace)}/${requestKey("page", of)}`;
    return (await fetched(url)).blob();
  }
}

/** What the server answers to a request. */
export async function fetchJson(url: string, options: RequestInit = {}): Promise<unknown> {
  return (await fetched(url, options)).json();
}

async function fetched(url: string, options: RequestInit = {}): Promise<Response> {
  const response = await fetch(url, { priority: "high", ...options }).catch(() => {
    throw new AskError(
      "The server does not answer. What is on screen stays; to go on, start `stepscope view` again.",
    );
  });
  if (response.ok) return response;
  throw new AskError(await reason(response), response.status);
}

async function reason(response: Response): Promise<string> {
  if (response.status === 401) {
    return "This page has no token: open the whole URL that `stepscope view` printed.";
  }
  try {
    const answer = (await response.json()) as { error?: string };
    if (answer.error) return answer.error;
  } catch {
    // not JSON: the status says all there is
  }
  return `The server answered ${response.status} ${response.statusText}.`;
}

import { readPacked } from "./element";
import { DATA_ELEMENT, EmbeddedHost, type Embedded } from "./embedded";
import type { Host } from "./host";
import { HttpHost } from "./http";

/** The host that this page lives in: data in the page itself, else the server it came from. */
export async function connect(page: Document): Promise<Host> {
  const data = page.getElementById(DATA_ELEMENT);
  if (!data) return new HttpHost();
  const host = new EmbeddedHost(await readPacked<Embedded>(data.textContent ?? ""));
  data.remove(); // megabytes of text that nobody reads again
  return host;
}

/** The data that an element of the page holds as JSON; null if there is no such element. */
export function readElement<T>(page: Document, id: string): T | null {
  return JSON.parse(page.getElementById(id)?.textContent ?? "null") as T | null;
}

/** The same of JSON in gzip in base64, as the element holds megabytes. */
export async function readPacked<T>(text: string): Promise<T> {
  const stream = new Blob([bytesOf(text.trim())])
    .stream()
    .pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(stream).json()) as T;
}

export function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  const letters = atob(base64);
  const bytes = new Uint8Array(letters.length);
  for (let at = 0; at < letters.length; at++) bytes[at] = letters.charCodeAt(at);
  return bytes;
}

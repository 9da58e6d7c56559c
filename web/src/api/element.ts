/** The data that an element of the page holds as JSON; null if there is no such element. */
export function readElement<T>(page: Document, id: string): T | null {
  return JSON.parse(page.getElementById(id)?.textContent ?? "null") as T | null;
}

import { messageOf } from "./error";
import { printAsShown } from "./print";

/** Starts a page in its element; where that fails, the page says why. */
export function startPage(start: (root: HTMLElement) => Promise<void>): void {
  const root = document.getElementById("app")!;
  printAsShown();
  start(root).catch((error: unknown) => {
    const line = document.createElement("p");
    line.className = "start-line";
    line.textContent = `The page could not start: ${messageOf(error)}`;
    root.replaceChildren(line);
  });
}

/** The name of the element of a saved page that says how it opens, as a URL's fragment. */
export const OPENS_AT = "stepscope-view";

/** The view that the URL asks for, or else the one that the page was saved with. */
export function firstHash(): string {
  const saved = document.querySelector<HTMLMetaElement>(`meta[name="${OPENS_AT}"]`);
  return location.hash || (saved?.content ?? "");
}

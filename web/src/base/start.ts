import { messageOf } from "./error";

/** Starts a page in its element; where that fails, the page says why. */
export function startPage(start: (root: HTMLElement) => Promise<void>): void {
  const root = document.getElementById("app")!;
  start(root).catch((error: unknown) => {
    const line = document.createElement("p");
    line.className = "start-line";
    line.textContent = `The page could not start: ${messageOf(error)}`;
    root.replaceChildren(line);
  });
}

interface Editor {
  postMessage(message: object): void;
}
declare function acquireVsCodeApi(): Editor;

let editor: Editor | null | undefined; // asked for once: an editor gives it away once

/** The editor in whose webview this page is; null in a browser. */
export function editorAround(): Editor | null {
  if (editor === undefined) {
    editor = typeof acquireVsCodeApi === "undefined" ? null : acquireVsCodeApi();
  }
  return editor;
}

/** Open a line in the editor around this page, if there is one. */
export function openLine(file: string, line: number): void {
  editorAround()?.postMessage({ kind: "reveal", file, line });
}

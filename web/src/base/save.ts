const KEPT_MS = 60_000;

/** Lets the browser save a text as a file. */
export function saveText(text: string, file: string, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = file.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
}

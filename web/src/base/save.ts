const KEPT_MS = 60_000;

/** Lets the browser save something as a file. */
export function saveBlob(blob: Blob, file: string): void {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = file.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
}

export function saveText(text: string, file: string, type: string): void {
  saveBlob(new Blob([text], { type }), file);
}

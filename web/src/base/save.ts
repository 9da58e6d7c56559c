const KEPT_MS = 60_000;

/** A name for a file: letters and digits of any script, and what no system objects to. */
export function savedName(file: string): string {
  return file.replace(/[^\p{L}\p{M}\p{N}_.-]+/gu, "_");
}

/** Lets the browser save something as a file. */
export function saveBlob(blob: Blob, file: string): void {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = savedName(file);
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), KEPT_MS);
}

export function saveText(text: string, file: string, type: string): void {
  saveBlob(new Blob([text], { type }), file);
}

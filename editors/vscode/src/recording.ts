import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import * as vscode from "vscode";
import { interpreter } from "./interpreter";
import { reveal } from "./panel";

const LONGEST_MS = 600_000; // to read a large recording; chosen

/** A recording in a tab: the page of `stepscope report --html`, whose lines lead into the editor. */
export class Recordings implements vscode.CustomReadonlyEditorProvider {
  static register(): vscode.Disposable {
    const options = { webviewOptions: { retainContextWhenHidden: true } };
    const register = (view: string) =>
      vscode.window.registerCustomEditorProvider(view, new Recordings(), options);
    return vscode.Disposable.from(register("stepscope.recording"), register("stepscope.trace"));
  }

  openCustomDocument(uri: vscode.Uri): vscode.CustomDocument {
    return { uri, dispose: () => undefined };
  }

  async resolveCustomEditor(
    { uri }: vscode.CustomDocument,
    { webview }: vscode.WebviewPanel,
  ): Promise<void> {
    webview.options = { enableScripts: true, localResourceRoots: [] };
    webview.onDidReceiveMessage(({ file, line }: { file: string; line: number }) =>
      reveal(file, line).then(undefined, () =>
        vscode.window.showWarningMessage(`stepscope: ${file} is not on this machine.`),
      ),
    );
    webview.html = await page(uri.fsPath).catch(problem);
  }
}

/** The page with its data, which loads nothing else. */
async function page(file: string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "stepscope-"));
  try {
    const out = join(folder, "page.html");
    const args = ["-m", "stepscope", "report", file, "--html", out];
    const root = vscode.workspace.getWorkspaceFolder(vscode.Uri.file(file))?.uri.fsPath;
    if (root) args.push("--source-root", root);
    await promisify(execFile)(await interpreter(), args, { cwd: root, timeout: LONGEST_MS });
    return await readFile(out, "utf8");
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** Why there is none, as its last line of output says. */
function problem(error: Error & { stderr?: string }): string {
  const text = error.stderr?.trim().split("\n").at(-1) ?? error.message;
  const escaped = text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  return `<!doctype html><title>stepscope</title><p role="alert">${escaped}</p>`;
}

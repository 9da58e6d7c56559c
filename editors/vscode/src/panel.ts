import { randomBytes } from "node:crypto";
import * as vscode from "vscode";
import { LanguageClient } from "vscode-languageclient/node";
import { BatchSize } from "./batch_size";
import { ANSWER, DEVICES, ExploredLine } from "./messages";

type FromPage =
  | { kind: "request"; id: number; request: string }
  | { kind: "devices"; id: number; on: string; ranks: number; bandwidth: number }
  | { kind: "batch"; id: number; value: number; more: boolean }
  | { kind: "reveal"; file: string; line: number }
  | { kind: "explore"; lines: ExploredLine[] | null }
  | { kind: "highlight"; file: string | null; line: number };

const TYPING_PAUSE_MS = 250;

/** The web page beside the editor: its requests go to the language server, its drags to the file. */
export class Panel implements vscode.Disposable {
  private panel: vscode.WebviewPanel | undefined;
  private readonly mark = vscode.window.createTextEditorDecorationType({
    isWholeLine: true,
    backgroundColor: new vscode.ThemeColor("editor.rangeHighlightBackground"),
  });
  private uri = "";
  private pause: NodeJS.Timeout | undefined;

  constructor(
    private readonly media: vscode.Uri,
    private readonly client: () => LanguageClient | undefined,
    private readonly batchSize: BatchSize,
    private readonly explore: (lines: ExploredLine[] | null) => void,
  ) {}

  /** Open the page for a file, or bring it to the front. */
  open(document: vscode.TextDocument): void {
    this.uri = document.uri.toString();
    if (this.panel) this.panel.reveal(undefined, true);
    else this.create();
    this.changed();
  }

  /** Tell the page that there is something new about a file; without one, about its own. */
  changed(uri = this.uri): void {
    if (vscode.Uri.parse(uri).toString() === this.uri) this.post({ kind: "changed" });
  }

  /** The text of a file was edited; once typing pauses the page asks what is written there. */
  edited(document: vscode.TextDocument): void {
    if (document.uri.toString() !== this.uri) return;
    clearTimeout(this.pause);
    this.pause = setTimeout(() => this.changed(), TYPING_PAUSE_MS);
  }

  /** Show in the page the line that the cursor is on. */
  line(document: vscode.TextDocument, line: number): void {
    if (this.panel?.visible) this.post({ kind: "line", file: document.uri.fsPath, line: line + 1 });
  }

  dispose(): void {
    clearTimeout(this.pause);
    this.panel?.dispose();
    this.mark.dispose();
  }

  private create(): void {
    const beside = { viewColumn: vscode.ViewColumn.Beside, preserveFocus: true };
    this.panel = vscode.window.createWebviewPanel("stepscope.panel", "stepscope", beside, {
      enableScripts: true,
      retainContextWhenHidden: true,
      localResourceRoots: [this.media],
    });
    this.panel.webview.html = this.page(this.panel.webview);
    this.panel.webview.onDidReceiveMessage((message: FromPage) => this.receive(message));
    this.panel.onDidDispose(() => {
      this.panel = undefined;
      this.explore(null);
    });
  }

  private post(message: object): void {
    void this.panel?.webview.postMessage(message);
  }

  private async receive(message: FromPage): Promise<void> {
    if (message.kind === "request") await this.answer(message.id, () => this.ask(ANSWER));
    else if (message.kind === "devices") {
      const { on, ranks, bandwidth } = message;
      await this.answer(message.id, () => this.ask(DEVICES, { on, ranks, bandwidth }));
    } else if (message.kind === "batch")
      await this.answer(message.id, () =>
        this.batchSize.set(this.uri, message.value, message.more),
      );
    else if (message.kind === "highlight") this.highlight(message.file, message.line);
    else if (message.kind === "explore") this.explore(message.lines);
    else await reveal(message.file, message.line);
  }

  /** Mark the line that the pointer is over in the page, where its file is on screen. */
  private highlight(file: string | null, line: number): void {
    for (const editor of vscode.window.visibleTextEditors) {
      const here = editor.document.uri.fsPath === file && line > 0;
      editor.setDecorations(this.mark, here ? [new vscode.Range(line - 1, 0, line - 1, 0)] : []);
    }
  }

  private async ask(request: string, parameters: object = {}): Promise<unknown> {
    const client = this.client();
    if (!client) throw new Error("The language server is not running: see its log.");
    return client.sendRequest(request, { uri: this.uri, ...parameters });
  }

  private async answer(id: number, find: () => Promise<unknown>): Promise<void> {
    try {
      this.post({ kind: "answer", id, answer: await find() });
    } catch (error) {
      this.post({ kind: "answer", id, error: error instanceof Error ? error.message : `${error}` });
    }
  }

  private page(webview: vscode.Webview): string {
    const at = (name: string) =>
      webview.asWebviewUri(vscode.Uri.joinPath(this.media, "panel", name));
    const nonce = randomBytes(16).toString("base64");
    const policy = [
      "default-src 'none'",
      `script-src 'nonce-${nonce}'`,
      `style-src ${webview.cspSource} 'unsafe-inline'`,
      `img-src ${webview.cspSource} data:`,
      `font-src ${webview.cspSource}`,
    ].join("; ");
    return `<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta http-equiv="Content-Security-Policy" content="${policy}">
    <link rel="stylesheet" href="${at("batch.css")}">
    <title>stepscope</title>
  </head>
  <body data-host="editor">
    <div id="app"></div>
    <script type="module" nonce="${nonce}" src="${at("batch.js")}"></script>
  </body>
</html>`;
  }
}

/** Show a line; the panel keeps the focus, so that a double click and the keyboard go on there. */
export async function reveal(file: string, line: number): Promise<void> {
  const document = await vscode.workspace.openTextDocument(vscode.Uri.file(file));
  const place = new vscode.Range(line - 1, 0, line - 1, 0);
  const editor = await vscode.window.showTextDocument(document, {
    viewColumn: vscode.ViewColumn.One,
    preserveFocus: true,
    selection: place,
  });
  editor.revealRange(place, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
}

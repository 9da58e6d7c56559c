import { render } from "preact";
import { printAsShown } from "./base/print";
import { connectBatch } from "./api/batch_host";
import { BatchStore } from "./state/batch";
import { followTheme } from "./state/theme";
import { BatchPanel } from "./views/batch/panel";
import "./styles/batch.css";

if (document.body.dataset.host === "editor") followEditor();
else followTheme();
printAsShown();

const store = new BatchStore(connectBatch(document));
void store.load();
render(<BatchPanel store={store} />, document.getElementById("app")!);

/** An editor says its theme by a class of the body, and changes it there. */
function followEditor(): void {
  const follow = () => {
    const { classList } = document.body;
    const dark = classList.contains("vscode-dark") || classList.contains("vscode-high-contrast");
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  };
  new MutationObserver(follow).observe(document.body, { attributeFilter: ["class"] });
  follow();
}

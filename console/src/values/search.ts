import { ExactNumber, type Json } from "./json";

/** The places whose key or value contains a text, and all places above them. The root is `$`. */
export function findInJson(value: Json, text: string): { matches: Set<string>; above: Set<string> } {
  const matches = new Set<string>();
  const above = new Set<string>();
  const wanted = text.trim().toLowerCase();
  const visit = (each: Json, key: string, path: string, parents: readonly string[]): void => {
    const isTree = typeof each === "object" && each !== null && !(each instanceof ExactNumber);
    const own = isTree ? key : `${key} ${String(each)}`;
    if (own.toLowerCase().includes(wanted)) {
      matches.add(path);
      for (const parent of parents) above.add(parent);
    }
    if (!isTree) return;
    for (const [name, child] of Object.entries(each)) visit(child, name, `${path}/${name}`, [...parents, path]);
  };
  if (wanted) visit(value, "", "$", []);
  return { matches, above };
}

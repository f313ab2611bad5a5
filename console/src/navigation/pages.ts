import { Activity, LayoutDashboard, type LucideIcon, MailX, UserRoundCheck } from "lucide-react";

export interface PageEntry {
  path: string;
  title: string;
  /** The rest of the title, which is not shown in the navigation, where there is little room. */
  rest?: string;
  icon: LucideIcon;
  permission: string;
  /** The second key of its shortcut: `g`, then this one. */
  key: string;
}

/** The pages of the navigation, in its order. */
export const PAGES: readonly PageEntry[] = [
  { path: "/", title: "Overview", icon: LayoutDashboard, permission: "executions:read", key: "o" },
  {
    path: "/executions",
    title: "Executions",
    icon: Activity,
    permission: "executions:read",
    key: "e",
  },
  {
    path: "/reviews",
    title: "Approvals",
    rest: "and reviews",
    icon: UserRoundCheck,
    permission: "reviews:read",
    key: "r",
  },
  {
    path: "/dead-letters",
    title: "Dead letters",
    icon: MailX,
    permission: "dlq:read",
    key: "d",
  },
];

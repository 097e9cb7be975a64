# NOT RUN: see flake.nix.
{ config, lib, pkgs, ... }:

let
  cfg = config.services.vioswitch;
  toml = pkgs.formats.toml { };
in
{
  options.services.vioswitch = {
    enable = lib.mkEnableOption "vioswitch, a switch for virtual machines";

    package = lib.mkOption {
      type = lib.types.package;
      description = "The package to run.";
    };

    settings = lib.mkOption {
      type = toml.type;
      default = { };
      example = lib.literalExpression ''
        {
          workers = "auto";
          port = [ { name = "vm1"; socket = "/run/vioswitch/vm1.sock"; } ];
          tap = [ { name = "uplink"; ifname = "vioswitch0"; } ];
        }
      '';
      description = "What vioswitch.toml(5) has.";
    };

    socketGroups = lib.mkOption {
      type = lib.types.listOf lib.types.str;
      default = [ "kvm" ];
      description = "Groups that sockets may be given to, beside the daemon's own.";
    };
  };

  config = lib.mkIf cfg.enable {
    services.vioswitch.settings.control = lib.mkDefault "/run/vioswitch/control.sock";

    environment.systemPackages = [ cfg.package ];
    environment.etc."vioswitch/vioswitch.toml".source =
      toml.generate "vioswitch.toml" cfg.settings;

    users.groups.vioswitch = { };
    users.users.vioswitch = {
      isSystemUser = true;
      group = "vioswitch";
      extraGroups = cfg.socketGroups;
    };

    systemd.tmpfiles.rules = [
      "d /run/vioswitch 0755 vioswitch vioswitch"
      "d /run/vioswitch/plug 3770 vioswitch kvm"
    ];

    systemd.packages = [ cfg.package ];
    systemd.services.vioswitchd = {
      wantedBy = [ "multi-user.target" ];
      # A changed file is applied while guests keep their network.
      reloadTriggers = [ config.environment.etc."vioswitch/vioswitch.toml".source ];
    };
  };
}

"""The device for Huawei Ascend NPUs."""
